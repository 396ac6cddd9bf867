"""Mixture-of-experts layer for few rows: every chosen expert's weights are read from memory once, at its speed.

With 192 rows and 8 of 256 experts each, an expert has about six rows and 6 MB of weights: time is that of reading
1.6 GB. So no product is made large, no row is moved: the first kernel lists every expert's pairs (row, choice), the
second gathers the rows of an expert beside a stretch of its gate and up weights, the third multiplies by a stretch
of its down weights, the fourth adds up each row's choices in their order, so that equal inputs give equal bits.
"""

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_PAIRS = 16384  # each program of the first kernel looks at all of them at once
FEW = 16  # rows of the least product; an expert with more takes MANY at once
MANY, MANY_STEP, MANY_STAGES = 64, 64, 3  # in shorter steps, so that FEW decides how many programs fit


class Tile(NamedTuple):
    """What a program of an expert reads in a step, and how many steps ahead it asks for it (num_stages - 1)."""

    outputs: int  # rows of a weight matrix
    step: int  # and columns
    num_warps: int
    num_stages: int


class Tiles(NamedTuple):
    gate_up: Tile
    down: Tile
    down_outputs: int  # rows of ``down`` for which a program stays


HALF = Tiles(Tile(128, 128, 8, 3), Tile(128, 128, 4, 3), 512)  # of 29 tried on an H200
SINGLE = Tiles(Tile(32, 32, 4, 2), Tile(32, 32, 4, 2), 256)  # float32: for tests, not for speed


def experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    n_rows: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """Sum over a row's chosen experts e of ``weight * down[e] @ (silu(gate) * up)``, gate and up from ``gate_up[e]``.

    x: (N, hidden) float32, float16 or bfloat16. index: (N, k) integers, experts in any order and number; those outside
    0..E-1 add nothing. weights: (N, k), any floating type. gate_up: (E, 2 * I, hidden), the gate's I rows, then up's;
    down: (E, hidden, I); both contiguous, in x's type. n_rows: (1,) int32 on the device: only so many rows are real,
    the others touch no expert and give zeros. tiles: block sizes; default by type.

    Returns (N, hidden) in x's type. Sums are float32; what passes from one kernel to the next is rounded to x's type:
    ``silu(gate) * up``, and each choice's weighted output, as transformers rounds it.
    Raises ValueError where shapes or types disagree, hidden or I is no multiple of 16, or N * k > 16,384.
    Source: transformers, Qwen3_5MoeExperts. Oracle: experts_reference.experts (test_experts.py).
    """
    _check(x, index, weights, gate_up, down)
    tiles = tiles or (SINGLE if x.element_size() == 4 else HALF)
    x, index, weights = x.contiguous(), index.contiguous(), weights.contiguous()
    order, first = list_pairs(index, n_rows, len(gate_up))
    h = gate_up_rows(x, order, first, gate_up, index.shape[1], tiles)
    pairs = down_rows(h, order, first, weights, down, tiles)
    return add_choices(pairs, index, n_rows, len(gate_up))


def list_pairs(index: Tensor, n_rows: Tensor | None, n_experts: int) -> tuple[Tensor, Tensor]:
    """List the pairs (``row * k + choice``) by expert: (N * k,) int32, those of e from
    ``first[e]`` to ``first[e + 1] - 1``."""
    order = torch.empty(index.numel(), dtype=torch.int32, device=index.device)
    first = torch.empty(n_experts + 1, dtype=torch.int32, device=index.device)
    block = max(16, triton.next_power_of_2(index.numel()))
    num_warps = min(16, max(4, block // 512))
    _list_pairs[(n_experts + 1,)](
        index, n_rows, order, first, index.numel(), n_experts, index.shape[1], block, num_warps=num_warps
    )
    return order, first


def gate_up_rows(x: Tensor, order: Tensor, first: Tensor, gate_up: Tensor, k: int, tiles: Tiles) -> Tensor:
    """Compute ``silu(gate) * up`` of every listed pair, in the list's order: (N * k, I)."""
    n_experts, inner, hidden = len(gate_up), gate_up.shape[1] // 2, gate_up.shape[2]
    outputs, step, num_warps, num_stages = tiles.gate_up
    outputs, step = gcd(outputs, inner), gcd(step, hidden)
    h = torch.empty(len(order), inner, dtype=x.dtype, device=x.device)
    _gate_up[(inner // outputs, n_experts)](
        x, order, first, gate_up, h, k, inner, hidden, outputs,
        FEW, step, num_stages, MANY, min(step, MANY_STEP), MANY_STAGES, num_warps=num_warps,
    )  # fmt: skip
    return h


def down_rows(h: Tensor, order: Tensor, first: Tensor, weights: Tensor, down: Tensor, tiles: Tiles) -> Tensor:
    """Compute the weighted output of every listed pair, at its own place: (N * k, hidden)."""
    n_experts, hidden, inner = down.shape
    outputs, step, num_warps, num_stages = tiles.down
    outputs, step = gcd(outputs, hidden), gcd(step, inner)
    stay = max(outputs, gcd(tiles.down_outputs, hidden))
    pairs = torch.empty(len(order), hidden, dtype=h.dtype, device=h.device)
    _down[(hidden // stay, n_experts)](
        h, order, first, weights, down, pairs, inner, hidden, stay, outputs,
        FEW, step, num_stages, MANY, min(step, MANY_STEP), MANY_STAGES, num_warps=num_warps,
    )  # fmt: skip
    return pairs


def add_choices(pairs: Tensor, index: Tensor, n_rows: Tensor | None, n_experts: int) -> Tensor:
    """Sum each row over its choices: (N, hidden)."""
    (n, k), hidden = index.shape, pairs.shape[1]
    block = min(1024, triton.next_power_of_2(hidden))
    out = torch.empty(n, hidden, dtype=pairs.dtype, device=pairs.device)
    _add_choices[(n, triton.cdiv(hidden, block))](pairs, index, n_rows, out, n_experts, k, hidden, block, num_warps=4)
    return out


def _check(x: Tensor, index: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> None:
    n, hidden = x.shape
    n_experts, inner = down.shape[0], down.shape[-1]
    if gate_up.shape != (n_experts, 2 * inner, hidden) or down.shape != (n_experts, hidden, inner):
        raise ValueError(
            f"gate_up is {tuple(gate_up.shape)} and down {tuple(down.shape)}: with x of {tuple(x.shape)} they must be "
            f"(E, 2 * I, {hidden}) and (E, {hidden}, I)"
        )
    if index.shape != weights.shape or index.dim() != 2 or len(index) != n:
        raise ValueError(
            f"index is {tuple(index.shape)} and weights {tuple(weights.shape)}: both must be ({n}, k), a row of x each"
        )
    if not x.dtype == gate_up.dtype == down.dtype or x.dtype not in TYPES:
        raise ValueError(
            f"x is {x.dtype}, gate_up {gate_up.dtype}, down {down.dtype}: give all three one of "
            f"{', '.join(map(str, TYPES))}"
        )
    if hidden % 16 or inner % 16:
        raise ValueError(f"hidden is {hidden} and I is {inner}: both must be multiples of 16")
    if index.numel() > MAX_PAIRS:
        raise ValueError(f"{n} rows of {index.shape[1]} choices are more than {MAX_PAIRS} pairs: give fewer rows")
    if not (gate_up.is_contiguous() and down.is_contiguous()):
        raise ValueError("gate_up and down must be contiguous: a copy of them on every call would cost more than all")


@triton.jit
def _list_pairs(
    index,
    n_rows,
    order,
    first,
    n_pairs,
    n_experts,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List one expert's pairs; the program behind the last expert's says where the last one's pairs end."""
    expert = tl.program_id(0)
    if n_rows is not None:
        n_pairs = tl.minimum(n_pairs, tl.load(n_rows) * K)
    pair = tl.arange(0, BLOCK)
    chosen = tl.load(index + pair, mask=pair < n_pairs, other=-1).to(tl.int32)
    start = tl.sum(((chosen >= 0) & (chosen < expert)).to(tl.int32))
    mine = (chosen == expert) & (expert < n_experts)
    rank = tl.cumsum(mine.to(tl.int32), 0) - 1
    tl.store(first + expert, start)
    tl.store(order + start + rank, pair, mask=mine)


@triton.jit
def _gate_up(
    x,  # (N, D)
    order,
    first,
    gate_up,  # (E, 2 * I, D)
    h,  # (N * K, I)
    K: tl.constexpr,
    I: tl.constexpr,
    D: tl.constexpr,
    OUTPUTS: tl.constexpr,  # divides I, the steps D
    FEW: tl.constexpr,
    FEW_STEP: tl.constexpr,
    FEW_STAGES: tl.constexpr,
    MANY: tl.constexpr,
    MANY_STEP: tl.constexpr,
    MANY_STAGES: tl.constexpr,
):
    """Compute OUTPUTS columns of h for one expert's pairs."""
    block, expert = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(first + expert), tl.load(first + expert + 1)
    if start == end:
        return
    gate = gate_up + expert.to(tl.int64) * (2 * I * D) + block * OUTPUTS * D
    h += block * OUTPUTS
    if end - start <= FEW:
        _gate_up_block(x, order, start, end, gate, h, K, I, D, OUTPUTS, FEW_STEP, FEW, FEW_STAGES)
    else:
        for at in range(start, end, MANY):
            _gate_up_block(x, order, at, end, gate, h, K, I, D, OUTPUTS, MANY_STEP, MANY, MANY_STAGES)


@triton.jit
def _gate_up_block(
    x,
    order,
    start,
    end,
    gate,
    h,
    K: tl.constexpr,
    I: tl.constexpr,
    D: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute them for the listed pairs ``start`` to ``start + ROWS - 1``, as far as ``end``."""
    at = start + tl.arange(0, ROWS)
    real = at < end
    row = tl.load(order + at, mask=real, other=0) // K
    d = tl.arange(0, STEP)
    i = tl.arange(0, OUTPUTS)
    x_at = x + row[:, None] * D + d[None, :]
    gate_at = gate + i[:, None] * D + d[None, :]
    up_at = gate_at + I * D
    gates = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    ups = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for d0 in tl.range(0, D, STEP, num_stages=STAGES):
        rows = tl.load(x_at + d0, mask=real[:, None], other=0.0)
        gates = tl.dot(rows, tl.load(gate_at + d0).T, gates, input_precision="ieee")
        ups = tl.dot(rows, tl.load(up_at + d0).T, ups, input_precision="ieee")
    out = gates / (1.0 + tl.exp(-gates)) * ups
    tl.store(h + at.to(tl.int64)[:, None] * I + i[None, :], out.to(h.dtype.element_ty), mask=real[:, None])


@triton.jit
def _down(
    h,  # (N * K, I)
    order,
    first,
    weights,  # (N * K,)
    down,  # (E, D, I)
    pairs,  # (N * K, D)
    I: tl.constexpr,
    D: tl.constexpr,
    STAY: tl.constexpr,  # divides D
    OUTPUTS: tl.constexpr,  # divides STAY, the steps I
    FEW: tl.constexpr,
    FEW_STEP: tl.constexpr,
    FEW_STAGES: tl.constexpr,
    MANY: tl.constexpr,
    MANY_STEP: tl.constexpr,
    MANY_STAGES: tl.constexpr,
):
    """Compute STAY columns of one expert's pairs."""
    block, expert = tl.program_id(0), tl.program_id(1)
    start, end = tl.load(first + expert), tl.load(first + expert + 1)
    if start == end:
        return
    down += expert.to(tl.int64) * (D * I) + block * STAY * I
    pairs += block * STAY
    if end - start <= FEW:
        _down_block(h, order, start, end, weights, down, pairs, I, D, STAY, OUTPUTS, FEW_STEP, FEW, FEW_STAGES)
    else:
        for at in range(start, end, MANY):
            _down_block(h, order, at, end, weights, down, pairs, I, D, STAY, OUTPUTS, MANY_STEP, MANY, MANY_STAGES)


@triton.jit
def _down_block(
    h,
    order,
    start,
    end,
    weights,
    down,
    pairs,
    I: tl.constexpr,
    D: tl.constexpr,
    STAY: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Loop once over the outputs and, within, the steps: the loads of the next outputs begin before these are done."""
    at = start + tl.arange(0, ROWS)
    real = at < end
    pair = tl.load(order + at, mask=real, other=0)
    weight = tl.load(weights + pair, mask=real, other=0.0).to(tl.float32)
    i = tl.arange(0, STEP)
    d = tl.arange(0, OUTPUTS)
    h_at = h + at.to(tl.int64)[:, None] * I + i[None, :]
    down_at = down + d[:, None] * I + i[None, :]
    out_at = pairs + pair.to(tl.int64)[:, None] * D + d[None, :]
    sums = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    STEPS: tl.constexpr = I // STEP
    for s in tl.range(0, STAY // OUTPUTS * STEPS, num_stages=STAGES):
        d0, i0 = s // STEPS * OUTPUTS, s % STEPS * STEP
        rows = tl.load(h_at + i0, mask=real[:, None], other=0.0)
        sums = tl.dot(rows, tl.load(down_at + d0 * I + i0).T, sums, input_precision="ieee")
        if s % STEPS == STEPS - 1:
            tl.store(out_at + d0, (sums * weight[:, None]).to(pairs.dtype.element_ty), mask=real[:, None])
            sums = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)


@triton.jit
def _add_choices(
    pairs,  # (N * K, D)
    index,  # (N, K)
    n_rows,
    out,  # (N, D)
    n_experts,
    K: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a row's choices in their order. Those that name no expert were not written."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    n = row + 1
    if n_rows is not None:
        n = tl.load(n_rows).to(tl.int64)
    for choice in tl.static_range(K):
        expert = tl.load(index + row * K + choice)
        written = (row < n) & (expert >= 0) & (expert < n_experts)
        total += tl.load(pairs + (row * K + choice) * D + d, mask=written & (d < D), other=0.0).to(tl.float32)
    tl.store(out + row * D + d, total.to(out.dtype.element_ty), mask=d < D)
