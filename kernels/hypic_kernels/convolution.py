"""The short causal convolution over the rows of a pass, from tails to new tails, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.plan import LinearPlan


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    plan: LinearPlan,
    tails: Tensor,
    block: int = 1024,
    num_warps: int = 4,
) -> Tensor:
    """Convolve each channel alone: ``y_i = sum_j weight[:, j] x_{i - (k - 1) + j} + bias``, SiLU of it where asked.

    x: (N, C), rows of any stride. weight: (C, k), best with a tap's channels side by side in memory, as rows are read.
    bias: (C,). tails: (n_slots, k - 1, C) in x's dtype, oldest row
    first, which stand before the rows; the sequences' new tails are written to it as the plan says.

    Returns (N, C) in x's dtype, computed in float32. Rows of no sequence come out as something finite or not.
    Oracle: convolution_reference.convolve.
    """
    n, channels = x.shape
    assert x.stride(1) == 1 and tails.is_contiguous()
    out = torch.empty(n, channels, dtype=x.dtype, device=x.device)
    grid = (n + len(plan.end), triton.cdiv(channels, block))
    _convolve[grid](
        x,
        weight,
        bias,
        tails,
        out,
        plan.reach,
        plan.back,
        plan.end,
        plan.tail_to,
        n,
        channels,
        x.stride(0),
        *weight.stride(),
        KERNEL=weight.shape[1],
        SILU=silu,
        BLOCK=block,
        num_warps=num_warps,
    )
    return out


@triton.jit
def _convolve(
    x,
    weight,
    bias,
    tails,
    out,
    reach,
    back,
    end,
    tail_to,
    n,
    n_channels,
    x_row,
    w_channel,
    w_tap,
    KERNEL: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < n_channels
    if i >= n:
        write_tail(x, tails, i, n, reach, back, end, tail_to, channels, mask, x_row, n_channels, KERNEL)
        return
    y = convolved(
        x, weight, bias, tails, i, reach, back, channels, mask, x_row, n_channels, w_channel, w_tap, KERNEL, SILU
    )
    tl.store(out + i.to(tl.int64) * n_channels + channels, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def convolved(
    x,
    weight,
    bias,
    tails,
    i,
    reach,
    back,
    channels,
    mask,
    x_row,
    n_channels,
    w_channel,
    w_tap,
    KERNEL: tl.constexpr,
    SILU: tl.constexpr,
):
    """Compute row i of the convolution, in float32. channels: a tile of any shape; mask: which of it there are."""
    near = tl.load(reach + i)
    slot = tl.load(back + i)
    y = tl.load(x + i.to(tl.int64) * x_row + channels, mask=mask, other=0.0).to(tl.float32)
    taps = weight + channels * w_channel + (KERNEL - 1) * w_tap
    y *= tl.load(taps, mask=mask, other=0.0).to(tl.float32)
    for d in tl.static_range(1, KERNEL):
        before = input_before(x, tails, i, near, slot, d, channels, mask, x_row, n_channels, KERNEL)
        y += before * tl.load(taps - d * w_tap, mask=mask, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + channels, mask=mask, other=0.0).to(tl.float32)
    if SILU:
        y *= tl.sigmoid(y)
    return y


@triton.jit
def write_tail(
    x,
    tails,
    i,
    n,
    reach,
    back,
    end,
    tail_to,
    channels,
    mask,
    x_row,
    n_channels,
    KERNEL: tl.constexpr,
):
    """Write the new tail of sequence i - n: what stands before the virtual row i.
    Nobody reads the slot in this pass."""
    to = tl.load(tail_to + i - n)
    if to >= 0:
        at = tl.load(end + i - n)
        near = tl.load(reach + i)
        slot = tl.load(back + i)
        for d in tl.static_range(1, KERNEL):
            before = input_before(x, tails, at, near, slot, d, channels, mask, x_row, n_channels, KERNEL)
            place = (to.to(tl.int64) * (KERNEL - 1) + KERNEL - 1 - d) * n_channels
            tl.store(tails + place + channels, before.to(tails.dtype.element_ty), mask=mask)


@triton.jit
def input_before(
    x,
    tails,
    at,
    near,
    slot,
    d,
    channels,
    mask,
    x_row,
    n_channels,
    KERNEL: tl.constexpr,
):
    """Load the input d rows before row ``at``, in float32: of the pass, of the tail in ``slot``, or zero.

    Two loads of which at most one is live, so that they need no branch: their sum is exact.
    """
    row = tl.load(x + (at.to(tl.int64) - d) * x_row + channels, mask=mask & (d <= near), other=0.0)
    place = (slot.to(tl.int64) * (KERNEL - 1) + KERNEL - 1 - (d - near)) * n_channels
    kept = tl.load(tails + place + channels, mask=mask & (d > near) & (slot >= 0), other=0.0)
    return row.to(tl.float32) + kept.to(tl.float32)
