"""The short causal convolution over a pass: each stretch of rows starts from the tail of what stood before it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic_rag.engine.plan import Plan


def convolve(x: Tensor, plan: Plan, starts: Sequence[Tensor], conv: nn.Conv1d) -> Tensor:
    """SiLU of the depthwise convolution. x: (N, C); starts: (k - 1, C) a stretch. Returns (N, C) in x's dtype."""
    kernel = conv.kernel_size[0]
    weight = conv.weight[:, 0].float().t().contiguous()  # (k, C), so that rows multiply it in order
    pieces = [
        p
        for stretch, tail in zip(plan.stretches, starts, strict=True)
        for p in (tail, x[stretch.start : stretch.start + stretch.n])
    ]
    padded = torch.cat(pieces).float()
    n = padded.shape[0] - kernel + 1
    y = padded[:n] * weight[0]
    for j in range(1, kernel):
        y.addcmul_(padded[j : j + n], weight[j])
    if conv.bias is not None:
        y += conv.bias
    # Between two stretches lie k - 1 outputs that mix them; they are nobody's.
    valid = [y[s.start + i * (kernel - 1) : s.start + i * (kernel - 1) + s.n] for i, s in enumerate(plan.stretches)]
    return F.silu(valid[0] if len(valid) == 1 else torch.cat(valid)).to(x.dtype)


def tails(x: Tensor, plan: Plan, starts: Sequence[Tensor]) -> list[Tensor]:
    """The last k - 1 inputs of each sequence's last stretch, reaching into its start where it is shorter."""
    last: dict[int, Tensor] = {}
    for stretch, start in zip(plan.stretches, starts, strict=True):
        rows = x[stretch.start : stretch.start + stretch.n]
        width = start.shape[0]
        last[stretch.sequence] = torch.cat((start, rows))[-width:] if stretch.n < width else rows[stretch.n - width :]
    return [last[s] for s in range(len(plan.spans))]
