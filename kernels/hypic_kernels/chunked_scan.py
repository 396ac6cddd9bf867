"""Gated DeltaNet's recurrence over a pass in two launches: each run folded into matrices, all at once, then run."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.plan import LinearPlan

CHUNK = 16  # rows that a run can have at most: a longer one is several, of which the last has the splice


def chunked_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    plan: LinearPlan,
    S: Tensor,
    T: Tensor,
    T_at: Tensor,
    dtype: torch.dtype,
    block_v: int = 32,
    precision: str = "split",
    num_warps: int = 4,
    num_stages: int = 2,
    prefetch: bool = True,
    fold_warps: int = 2,
) -> Tensor:
    """Return what scan.scan does for a dense T, one decay a head, and runs of at most CHUNK rows.

    The rows of a run change R, and read it, by products that need no R to be made ready (the UT transform):

        written = u - w R,    R' = g R + writer^T written,    out = reader R + own

    with X = (1 + L)^-1, L_ij = beta_i G_ij k_i k_j below the diagonal, G_ij the decay from row j to row i, g_i that
    up to row i, P_ij = G_ij q_i k_j on and below it: w = X beta g k, u = X beta v, reader = g q - P w, own = P u.

    The arguments are those of scan.scan. block_v, num_warps, num_stages, prefetch (what a
    splice reads, into L2 a run ahead): of the second launch. precision: of the products, ``split`` or Triton's.
    Sources: DeltaNet, arXiv 2406.06484; Gated DeltaNet, 2412.06464; HYPIC, 2607.01299, Eq. 6.
    Oracle: scan_reference.scan.
    """
    n, n_heads, v_dim = v.shape
    k_dim = k.shape[-1]
    assert S.shape[1:] == (n_heads, k_dim, v_dim), (S.shape, n_heads, k_dim, v_dim)
    assert n_heads % q.shape[1] == n_heads % k.shape[1] == 0, (n_heads, q.shape, k.shape)
    assert all(t.is_contiguous() for t in (q, k, v, log_decay, beta, S, T, T_at)) and log_decay.dim() == 2
    n_runs, n_sequences = len(plan.run_row), len(plan.end)
    w, reader, writer = (torch.empty(n_runs, n_heads, CHUNK, k_dim, device=v.device) for _ in range(3))
    u, own = (torch.empty(n_runs, n_heads, CHUNK, v_dim, device=v.device) for _ in range(2))
    decay = torch.empty(n_heads, n_runs, device=v.device)
    matrix = torch.empty(n_heads, n_runs, dtype=torch.int32, device=v.device)
    out = torch.empty(n, n_heads, v_dim, dtype=dtype, device=v.device)
    sizes = {"K": k_dim, "V": v_dim, "CHUNK": CHUNK}
    width = max(32, triton.next_power_of_2(k_dim))
    _fold[(n_runs, n_heads)](
        q,
        k,
        v,
        log_decay,
        beta,
        T_at,
        w,
        reader,
        writer,
        u,
        own,
        decay,
        matrix,
        plan.run_row,
        plan.run_n,
        plan.run_slot,
        plan.run_compose,
        plan.first_run,
        n_sequences,
        n_runs,
        n_heads,
        q.shape[1],
        k.shape[1],
        **sizes,
        TILE=32,
        PRECISION=precision,
        num_warps=fold_warps,
        num_stages=1,
    )
    _run[(triton.cdiv(v_dim, block_v), n_heads, n_sequences + 1)](
        w,
        reader,
        writer,
        u,
        own,
        decay,
        matrix,
        out,
        S,
        T,
        plan.run_row,
        plan.run_n,
        plan.run_slot,
        plan.run_compose,
        plan.first_run,
        plan.state_from,
        plan.state_to,
        n,
        n_runs,
        n_sequences,
        n_heads,
        **sizes,
        HALF=width // 2,
        BV=block_v,
        RUNS=triton.next_power_of_2(n_runs),
        LINES=triton.next_power_of_2(triton.cdiv(k_dim * k_dim * block_v, 32 * v_dim)),
        PRECISION=precision,
        PREFETCH=prefetch and v.is_cuda,
        STAGES=num_stages,
        num_warps=num_warps,
    )
    return out


@triton.jit
def _fold(
    q, k, v, log_decay, beta, T_at,
    w, reader, writer, u, own, decay, matrix,
    run_row, run_n, run_slot, run_compose, first_run,
    n_sequences, n_runs, n_heads, n_q_heads, n_k_heads,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    h = tl.program_id(1)
    if run >= tl.load(first_run + n_sequences):
        return
    row = tl.load(run_row + run)
    n = tl.load(run_n + run)
    slot = tl.load(run_slot + run)
    exact = (slot >= 0) & (tl.load(run_compose + run) == 0)
    tl.store(matrix + h * n_runs + run, tl.load(T_at + slot * n_heads + h, mask=exact, other=-1))

    # Rows beyond the run neither decay nor write. Channels are taken TILE at a time, for the sake of registers.
    i = tl.arange(0, CHUNK)
    part = tl.arange(0, TILE)
    there = i < n
    rows = (row + i).to(tl.int64)
    q_rows = (rows * n_q_heads + h // (n_heads // n_q_heads)) * K
    k_rows = (rows * n_k_heads + h // (n_heads // n_k_heads)) * K
    heads = rows * n_heads + h
    bt = tl.load(beta + heads, mask=there, other=0.0)
    gt = tl.load(log_decay + heads, mask=there, other=0.0)
    total = tl.cumsum(gt, axis=0)
    end = tl.sum(gt, axis=0)
    tl.store(decay + h * n_runs + run, tl.exp(end))
    kk = tl.zeros((CHUNK, CHUNK), tl.float32)
    qk = tl.zeros((CHUNK, CHUNK), tl.float32)
    for c in range(0, K, TILE):
        mask = there[:, None] & (c + part < K)[None, :]
        qt = tl.load(q + q_rows[:, None] + (c + part)[None, :], mask=mask, other=0.0).to(tl.float32)
        kt = tl.load(k + k_rows[:, None] + (c + part)[None, :], mask=mask, other=0.0).to(tl.float32)
        kk += _product(kt, tl.trans(kt), PRECISION)
        qk += _product(qt, tl.trans(kt), PRECISION)

    # The difference is taken before the exponential: exp(-total) alone overflows.
    seen = i[:, None] >= i[None, :]
    between = tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0))
    system = tl.where(i[:, None] > i[None, :], bt[:, None] * kk * between, 0.0)
    scores = tl.where(seen, qk * between, 0.0)

    # Forward substitution. Powers of the system are quicker but grow where keys repeat.
    X = (i[:, None] == i[None, :]).to(tl.float32)
    for j in range(n - 1):
        column = tl.sum(tl.where(i[None, :] == j, system, 0.0), axis=1)
        solved = tl.sum(tl.where(i[:, None] == j, X, 0.0), axis=0)
        X -= column[:, None] * solved[None, :]

    at = (run * n_heads + h).to(tl.int64) * CHUNK + i
    to_here = tl.exp(total)[:, None]
    to_end = tl.exp(end - total)[:, None]
    for c in range(0, K, TILE):
        mask = there[:, None] & (c + part < K)[None, :]
        qt = tl.load(q + q_rows[:, None] + (c + part)[None, :], mask=mask, other=0.0).to(tl.float32)
        kt = tl.load(k + k_rows[:, None] + (c + part)[None, :], mask=mask, other=0.0).to(tl.float32)
        wt = _product(X, bt[:, None] * to_here * kt, PRECISION)
        places = at[:, None] * K + (c + part)[None, :]
        tl.store(w + places, wt, mask=mask)
        tl.store(reader + places, to_here * qt - _product(scores, wt, PRECISION), mask=mask)
        tl.store(writer + places, to_end * kt, mask=mask)
    for c in range(0, V, TILE):
        mask = there[:, None] & (c + part < V)[None, :]
        vt = tl.load(v + heads[:, None] * V + (c + part)[None, :], mask=mask, other=0.0).to(tl.float32)
        ut = _product(X, bt[:, None] * vt, PRECISION)
        places = at[:, None] * V + (c + part)[None, :]
        tl.store(u + places, ut, mask=mask)
        tl.store(own + places, _product(scores, ut, PRECISION), mask=mask)


@triton.jit
def _run(
    w, reader, writer, u, own, decay, matrix, out, S, T,
    run_row, run_n, run_slot, run_compose, first_run, state_from, state_to,
    n_rows, n_runs, n_sequences, n_heads,
    K: tl.constexpr, V: tl.constexpr, HALF: tl.constexpr, CHUNK: tl.constexpr, BV: tl.constexpr, RUNS: tl.constexpr,
    LINES: tl.constexpr, PRECISION: tl.constexpr, PREFETCH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    m = tl.program_id(2)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    mask_v = columns < V
    runs = tl.arange(0, RUNS)
    if m == n_sequences:  # the padding's rows
        used = runs < tl.load(first_run + n_sequences)
        stop = tl.load(run_row + runs, mask=used, other=0) + tl.load(run_n + runs, mask=used, other=0)
        for row in range(tl.max(stop, axis=0), n_rows):
            zero = tl.zeros((BV,), out.dtype.element_ty)
            tl.store(out + (row * n_heads + h) * V + columns, zero, mask=mask_v)
        return
    to = tl.load(state_to + m)
    if to < 0:
        return

    # The channels of R in two halves: a register tile has no slices, and half a T is what registers hold.
    upper = tl.arange(0, HALF)
    lower = HALF + upper
    mask_0 = (upper < K)[:, None] & mask_v[None, :]
    mask_1 = (lower < K)[:, None] & mask_v[None, :]
    inside_0 = upper[:, None] * V + columns[None, :]
    inside_1 = lower[:, None] * V + columns[None, :]
    start = tl.load(state_from + m)
    state = S + (start.to(tl.int64) * n_heads + h) * K * V
    R0 = tl.load(state + inside_0, mask=mask_0 & (start >= 0), other=0.0)
    R1 = tl.load(state + inside_1, mask=mask_1 & (start >= 0), other=0.0)

    # What a splice reads is asked for one run ahead. Its product stands in the loop without a branch, on a T of zero
    # where it is dead: heads with live ones decide the time. The runs behind the last splice (a question's rows) are
    # a loop without it.
    first = tl.load(first_run + m)
    last = tl.load(first_run + m + 1)
    slots = tl.load(run_slot + runs, mask=(runs >= first) & (runs < last), other=-1)
    spliced = tl.maximum(tl.max(tl.where(slots >= 0, runs + 1, 0), axis=0), first)
    for run in tl.range(first, spliced, num_stages=STAGES):
        if PREFETCH:
            ahead = tl.minimum(run + 1, last - 1)
            next_slot = tl.maximum(tl.load(run_slot + ahead), 0).to(tl.int64)
            next_S = S + (next_slot * n_heads + h) * K * V + tl.program_id(0) * BV
            _ask(next_S + tl.minimum(tl.arange(0, 2 * HALF), K - 1) * V)
            next_at = tl.load(matrix + h * n_runs + ahead)
            if next_at >= 0:  # of T each program asks for its part: they run side by side
                lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
                _ask(T + next_at.to(tl.int64) * K * K + tl.minimum(lines * 32, K * K - 1))
        R0, R1 = _rows(
            R0, R1, w, reader, writer, u, own, decay, out, run_row, run_n, run, h, n_runs, n_heads,
            upper, lower, columns, mask_v, K, V, CHUNK, PRECISION,
        )  # fmt: skip
        slot = tl.load(run_slot + run)
        interior = S + (slot.to(tl.int64) * n_heads + h) * K * V
        S0 = tl.load(interior + inside_0, mask=mask_0 & (slot >= 0), other=0.0)
        S1 = tl.load(interior + inside_1, mask=mask_1 & (slot >= 0), other=0.0)
        at = tl.load(matrix + h * n_runs + run)
        tile = T + at.to(tl.int64) * K * K
        C0 = _product(_block(tile, at, upper, upper, K), R0, PRECISION)
        C0 += _product(_block(tile, at, upper, lower, K), R1, PRECISION)
        C1 = _product(_block(tile, at, lower, upper, K), R0, PRECISION)
        C1 += _product(_block(tile, at, lower, lower, K), R1, PRECISION)
        added = (slot < 0) | (tl.load(run_compose + run) == 2)
        R0 = tl.where(added, R0, C0) + S0
        R1 = tl.where(added, R1, C1) + S1
    for run in tl.range(spliced, last, num_stages=STAGES):
        R0, R1 = _rows(
            R0, R1, w, reader, writer, u, own, decay, out, run_row, run_n, run, h, n_runs, n_heads,
            upper, lower, columns, mask_v, K, V, CHUNK, PRECISION,
        )  # fmt: skip
    state = S + (to.to(tl.int64) * n_heads + h) * K * V
    tl.store(state + inside_0, R0, mask=mask_0)
    tl.store(state + inside_1, R1, mask=mask_1)


@triton.jit
def _rows(
    R0, R1, w, reader, writer, u, own, decay, out, run_row, run_n, run, h, n_runs, n_heads,
    upper, lower, columns, mask_v,
    K: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write what the rows of a run read; return R behind them."""
    row = tl.load(run_row + run)
    n = tl.load(run_n + run)
    i = tl.arange(0, CHUNK)
    at = (run * n_heads + h).to(tl.int64) * CHUNK
    places_0 = i[:, None] * K + upper[None, :]
    places_1 = i[:, None] * K + lower[None, :]
    places_v = i[:, None] * V + columns[None, :]
    mask_0 = (i < n)[:, None] & (upper < K)[None, :]
    mask_1 = (i < n)[:, None] & (lower < K)[None, :]
    mask = (i < n)[:, None] & mask_v[None, :]
    read = tl.load(own + at * V + places_v, mask=mask, other=0.0)
    read += _product(tl.load(reader + at * K + places_0, mask=mask_0, other=0.0), R0, PRECISION)
    read += _product(tl.load(reader + at * K + places_1, mask=mask_1, other=0.0), R1, PRECISION)
    written = tl.load(u + at * V + places_v, mask=mask, other=0.0)
    written -= _product(tl.load(w + at * K + places_0, mask=mask_0, other=0.0), R0, PRECISION)
    written -= _product(tl.load(w + at * K + places_1, mask=mask_1, other=0.0), R1, PRECISION)
    k0 = tl.load(writer + at * K + places_0, mask=mask_0, other=0.0)
    k1 = tl.load(writer + at * K + places_1, mask=mask_1, other=0.0)
    g = tl.load(decay + h * n_runs + run)
    rows = out + (row.to(tl.int64) * n_heads + h) * V
    tl.store(rows + i[:, None] * n_heads * V + columns[None, :], read.to(out.dtype.element_ty), mask=mask)
    R0 = g * R0 + _product(tl.trans(k0), written, PRECISION)
    R1 = g * R1 + _product(tl.trans(k1), written, PRECISION)
    return R0, R1


@triton.jit
def _ask(lines):
    """Bring lines of 128 bytes into L2, without waiting."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [lines.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _block(tile, at, rows, columns, K: tl.constexpr):
    """Load a block of T, zero where it is dead."""
    mask = (rows < K)[:, None] & (columns < K)[None, :] & (at >= 0)
    return tl.load(tile + rows[:, None] * K + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    """Multiply a by b in float32. ``split``: on tensor cores, by three products of halves that TF32 holds.

    Each has its accumulator, and what is added to the product is added to it outside: tensor cores cut what they
    accumulate instead of rounding it.
    """
    if PRECISION == "split":
        a_high, b_high = _high(a), _high(b)
        small = tl.dot(a - a_high, b_high, input_precision="tf32")
        small = tl.dot(a_high, b - b_high, small, input_precision="tf32")
        return small + tl.dot(a_high, b_high, input_precision="tf32")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _high(x):
    """Round x to the 10 bits of fraction that TF32 has of float32's 23."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
