"""The recurrence of a linear layer over a pass: rows one at a time, and between them the splices ``R = T R + S``."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.plan import LinearPlan

FORMS = {  # of what a cached interior does to R: whether it is in T, T_at, rates
    "dense": (True, True, False),
    "diagonal": (True, False, False),
    "steps": (True, False, True),
    "scalar": (True, False, False),
    "length": (False, False, True),
    "none": (False, False, False),
}


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    plan: LinearPlan,
    S: Tensor,
    T: Tensor | None,
    T_at: Tensor | None,
    form: str,
    dtype: torch.dtype,
    rates: Tensor | None = None,
    block_v: int = 16,
    tile: int = 32,
    precision: str = "tf32x3",
    num_warps: int = 4,
    num_stages: int = 2,
) -> Tensor:
    """Run the recurrence: return what each row reads of the state behind it, ``q^T R``, where a row makes of R

        g R + k v^T                                     without beta
        g R + beta k (v - k^T g R)^T                    with it: the delta rule

    q: (N, Hq, K); k: (N, Hk, K); heads of q and k serve H / Hq and H / Hk value heads. v: (N, H, V). log_decay: of g,
    (N, H) or (N, H, K) float32. beta: (N, H) float32. S: (n_slots, H, K, V) float32, states read and written as the
    plan says. T, of what the plan composes exactly, and rates, float32, by ``form``:

        dense       T (n_matrices, K, K), T_at (n_slots, H) int32 a head's matrix, -1 for a T of zero
        diagonal    T (n_slots, H, K), its logarithm
        steps       T (n_slots, H), a sum of time steps; rates (H, K), the log decays a unit of time
        scalar      T (n_slots, H), its logarithm
        length      T None: rates (H,), the log decay a token
        none        T None: no run has a splice (decoding), and a program needs fewer registers

    Returns (N, H, V) in ``dtype``; the rows behind the last run are zero. All is computed in float32.
    block_v: columns of R a program (they are independent: T acts on K), or as many as there are. tile: columns of T at
    a time. precision: of the dense product, Triton's input_precision. num_warps: at most. num_stages: tiles of T on
    their way.
    Sources: Gated DeltaNet, arXiv 2412.06464; HYPIC, arXiv 2607.01299, Eq. 6. Oracle: scan_reference.scan.
    """
    n, n_heads, v_dim = v.shape
    k_dim = k.shape[-1]
    assert S.shape[1:] == (n_heads, k_dim, v_dim), (S.shape, n_heads, k_dim, v_dim)
    assert n_heads % q.shape[1] == n_heads % k.shape[1] == 0, (n_heads, q.shape, k.shape)
    assert all(t is None or t.is_contiguous() for t in (q, k, v, log_decay, beta, S, T, T_at, rates))
    assert form in FORMS, form
    assert FORMS[form] == (T is not None, T_at is not None, rates is not None), form
    out = torch.empty(n, n_heads, v_dim, dtype=dtype, device=v.device)
    n_sequences = len(plan.end)
    width = max(16, triton.next_power_of_2(k_dim))
    if form != "dense":  # a product has 16 columns at least
        block_v = min(block_v, triton.next_power_of_2(v_dim))
    num_warps = min(num_warps, max(1, width * block_v // 128))  # of a small tile a thread has four places
    grid = (triton.cdiv(v_dim, block_v), n_heads, n_sequences + 1)
    _scan[grid](
        q,
        k,
        v,
        log_decay,
        beta,
        out,
        S,
        T,
        T_at,
        rates,
        plan.run_row,
        plan.run_n,
        plan.run_slot,
        plan.run_tokens,
        plan.run_compose,
        plan.first_run,
        plan.state_from,
        plan.state_to,
        n,
        len(plan.run_row),
        n_sequences,
        n_heads,
        q.shape[1],
        k.shape[1],
        K=k_dim,
        V=v_dim,
        BK=width,
        BV=block_v,
        TILE=min(tile, width),
        RUNS=triton.next_power_of_2(len(plan.run_row)),
        DELTA=beta is not None,
        CHANNELS=log_decay.dim() == 3,
        FORM=form,
        PRECISION=precision,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


@triton.jit
def _scan(
    q,
    k,
    v,
    log_decay,
    beta,
    out,
    S,
    T,
    T_at,
    rates,
    run_row,
    run_n,
    run_slot,
    run_tokens,
    run_compose,
    first_run,
    state_from,
    state_to,
    n_rows,
    n_runs,
    n_sequences,
    n_heads,
    n_q_heads,
    n_k_heads,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
    DELTA: tl.constexpr,
    CHANNELS: tl.constexpr,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    h = tl.program_id(1)
    m = tl.program_id(2)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    mask_v = columns < V
    if m == n_sequences:  # the padding's rows
        runs = tl.arange(0, RUNS)
        used = runs < tl.load(first_run + n_sequences)
        stop = tl.load(run_row + runs, mask=used, other=0) + tl.load(run_n + runs, mask=used, other=0)
        for row in range(tl.max(stop, axis=0), n_rows):
            zero = tl.zeros((BV,), out.dtype.element_ty)
            tl.store(out + (row * n_heads + h) * V + columns, zero, mask=mask_v)
        return
    to = tl.load(state_to + m)
    if to < 0:
        return

    # Tiles of T and S are found as base + slot; a program's columns of state_to's R are its own.
    channels = tl.arange(0, BK)
    mask_k = channels < K
    inside = h * K * V + channels[:, None] * V + columns[None, :]
    mask = mask_k[:, None] & mask_v[None, :]
    start = tl.load(state_from + m)
    R = tl.load(S + start.to(tl.int64) * n_heads * K * V + inside, mask=mask & (start >= 0), other=0.0)

    # What a run needs is asked for one run ahead, and a row's vectors one row ahead: each is behind a chain of loads.
    first = tl.load(first_run + m)
    last = tl.load(first_run + m + 1)
    at = -1
    row, n, slot, compose = _run(run_row, run_n, run_slot, run_compose, first, n_runs)
    if FORM == "dense":
        at = tl.load(T_at + slot * n_heads + h, mask=slot >= 0, other=-1)
    qt, kt, vt, gt, bt = _row(
        q, k, v, log_decay, beta, row, n_rows, h, n_heads, n_q_heads, n_k_heads, channels, columns, mask_k, mask_v,
        K, V, DELTA, CHANNELS,
    )  # fmt: skip
    for run in range(first, last):
        next_row, next_n, next_slot, next_compose = _run(run_row, run_n, run_slot, run_compose, run + 1, n_runs)
        if FORM != "none":
            interior = tl.load(S + slot.to(tl.int64) * n_heads * K * V + inside, mask=mask & (slot >= 0), other=0.0)
        for i in range(n):
            following = tl.where(i + 1 < n, row + i + 1, next_row)
            qn, kn, vn, gn, bn = _row(
                q, k, v, log_decay, beta, following, n_rows, h, n_heads, n_q_heads, n_k_heads, channels, columns,
                mask_k, mask_v, K, V, DELTA, CHANNELS,
            )  # fmt: skip
            if CHANNELS:
                R *= gt[:, None]
            else:
                R *= gt
            written = vt
            if DELTA:
                written = bt * (vt - tl.sum(R * kt[:, None], axis=0))
            R += kt[:, None] * written[None, :]
            read = tl.sum(R * qt[:, None], axis=0)
            place = ((row + i).to(tl.int64) * n_heads + h) * V
            tl.store(out + place + columns, read.to(out.dtype.element_ty), mask=mask_v)
            qt, kt, vt, gt, bt = qn, kn, vn, gn, bn
        if n == 0:
            qt, kt, vt, gt, bt = _row(
                q, k, v, log_decay, beta, next_row, n_rows, h, n_heads, n_q_heads, n_k_heads, channels, columns,
                mask_k, mask_v, K, V, DELTA, CHANNELS,
            )  # fmt: skip
        next_at = -1
        if FORM == "dense":
            next_at = tl.load(T_at + next_slot * n_heads + h, mask=next_slot >= 0, other=-1)
        if FORM != "none":  # noqa: SIM102, a constant
            if slot >= 0:
                if compose == 2:
                    R += interior
                elif compose == 1:
                    R = interior
                elif FORM == "scalar":
                    R = R * tl.exp(tl.load(T + slot * n_heads + h)) + interior
                elif FORM == "length":
                    R = R * tl.exp(tl.load(run_tokens + run).to(tl.float32) * tl.load(rates + h)) + interior
                elif FORM == "diagonal":
                    total = tl.load(T + (slot.to(tl.int64) * n_heads + h) * K + channels, mask=mask_k, other=0.0)
                    R = R * tl.exp(total)[:, None] + interior
                elif FORM == "steps":
                    rate = tl.load(rates + h * K + channels, mask=mask_k, other=0.0)
                    R = R * tl.exp(tl.load(T + slot * n_heads + h) * rate)[:, None] + interior
                else:
                    carried = tl.zeros((BK, BV), tl.float32)
                    if at >= 0:
                        # A register tile has no slices, so R goes through its place in state_to, this program's own.
                        own = S + to.to(tl.int64) * n_heads * K * V + h * K * V + columns[None, :]
                        tl.store(own + channels[:, None] * V, R, mask=mask)
                        tl.debug_barrier()
                        for j in range(0, K, TILE):
                            inner = j + tl.arange(0, TILE)
                            entries = at.to(tl.int64) * K * K + channels[:, None] * K + inner[None, :]  # type: ignore[attr-defined]
                            part = tl.load(T + entries, mask=mask_k[:, None] & (inner < K)[None, :], other=0.0)
                            rows = tl.load(
                                own + inner[:, None] * V, mask=(inner < K)[:, None] & mask_v[None, :], other=0.0
                            )
                            carried = tl.dot(part, rows, carried, input_precision=PRECISION)
                        tl.debug_barrier()
                    R = carried + interior
        row, n, slot, compose, at = next_row, next_n, next_slot, next_compose, next_at
    tl.store(S + to.to(tl.int64) * n_heads * K * V + inside, R, mask=mask)


@triton.jit
def _run(run_row, run_n, run_slot, run_compose, run, n_runs):
    """Load the row, number of rows, slot and composition of a run; beyond the last of all runs it is the last."""
    run = tl.minimum(run, n_runs - 1)
    return tl.load(run_row + run), tl.load(run_n + run), tl.load(run_slot + run), tl.load(run_compose + run)


@triton.jit
def _row(
    q,
    k,
    v,
    log_decay,
    beta,
    row,
    n_rows,
    h,
    n_heads,
    n_q_heads,
    n_k_heads,
    channels,
    columns,
    mask_k,
    mask_v,
    K: tl.constexpr,
    V: tl.constexpr,
    DELTA: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Load q, k, v, g, beta of a row and value head, in float32; of some row where there is none such."""
    row = tl.minimum(tl.maximum(row, 0), n_rows - 1).to(tl.int64)
    q_head = row * n_q_heads + h // (n_heads // n_q_heads)
    k_head = row * n_k_heads + h // (n_heads // n_k_heads)
    head = row * n_heads + h
    qt = tl.load(q + q_head * K + channels, mask=mask_k, other=0.0).to(tl.float32)
    kt = tl.load(k + k_head * K + channels, mask=mask_k, other=0.0).to(tl.float32)
    vt = tl.load(v + head * V + columns, mask=mask_v, other=0.0).to(tl.float32)
    if CHANNELS:
        gt = tl.load(log_decay + head * K + channels, mask=mask_k, other=0.0).to(tl.float32)
    else:
        gt = tl.load(log_decay + head).to(tl.float32)
    bt = 1.0
    if DELTA:
        bt = tl.load(beta + head).to(tl.float32)
    return qt, kt, vt, tl.exp(gt), bt
