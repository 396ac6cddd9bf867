"""The short causal convolution and the token shift: each stretch of rows starts from the tail of what stood before."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.plan import Plan


def convolve(
    x: Tensor, plan: Plan, starts: Sequence[Tensor], weight: Tensor, bias: Tensor | None, silu: bool
) -> Tensor:
    """Run the depthwise convolution. x: (N, C); starts: (k - 1, C) a stretch; weight: (C, k). Returns (N, C)."""
    kernel = weight.shape[-1]
    taps = weight.float().t().contiguous()  # (k, C), so that rows multiply it in order
    padded = _padded(x, plan, starts).float()
    n = padded.shape[0] - kernel + 1
    y = padded[:n] * taps[0]
    for j in range(1, kernel):
        y.addcmul_(padded[j : j + n], taps[j])
    if bias is not None:
        y += bias
    # Between two stretches lie k - 1 outputs that mix them; they are nobody's.
    y = _stretches(y, plan, kernel - 1)
    return (F.silu(y) if silu else y).to(x.dtype)


def previous(x: Tensor, plan: Plan, starts: Sequence[Tensor]) -> Tensor:
    """Return the row before each row: a token shift. x: (N, C); starts: (1, C) a stretch. Returns (N, C)."""
    return _stretches(_padded(x, plan, starts), plan, 1)


def _padded(x: Tensor, plan: Plan, starts: Sequence[Tensor]) -> Tensor:
    """Lay every stretch of rows behind what stood before it."""
    pieces = [
        piece
        for stretch, start in zip(plan.stretches, starts, strict=True)
        for piece in (start, x[stretch.start : stretch.start + stretch.n])
    ]
    return torch.cat(pieces)


def _stretches(y: Tensor, plan: Plan, width: int) -> Tensor:
    """Cut out what of y belongs to rows, where stretches begin ``width`` rows apart from each other."""
    valid = [y[s.start + i * width : s.start + i * width + s.n] for i, s in enumerate(plan.stretches)]
    return valid[0] if len(valid) == 1 else torch.cat(valid)


def tails(x: Tensor, plan: Plan, starts: Sequence[Tensor]) -> list[Tensor]:
    """Return the last k - 1 inputs (k - 1, C) of each sequence's last stretch, reaching into
    its start where it is shorter."""
    last: dict[int, Tensor] = {}
    for stretch, start in zip(plan.stretches, starts, strict=True):
        rows = x[stretch.start : stretch.start + stretch.n]
        width = start.shape[0]
        last[stretch.sequence] = torch.cat((start, rows))[-width:] if stretch.n < width else rows[stretch.n - width :]
    return [last[s] for s in range(len(plan.spans))]
