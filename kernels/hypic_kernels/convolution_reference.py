"""The convolution of a pass, row by row."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_kernels.plan import LinearPlan


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, plan: LinearPlan, tails: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute convolution.convolve row by row, by its arguments. Returns (N, C) in float32, not rounded, and the slab
    with the new tails in it; ``tails`` itself stays as it is."""
    n, width = len(x), weight.shape[1] - 1
    y = torch.empty(n, x.shape[1], device=x.device)
    for i in range(n):
        window = torch.cat((_before(x, plan, tails, i, i, width), x[i : i + 1])).float()
        y[i] = (window * weight.float().t()).sum(0)
    if bias is not None:
        y += bias.float()
    after = tails.clone()
    for m, (at, to) in enumerate(zip(plan.end.tolist(), plan.tail_to.tolist(), strict=True)):
        if to >= 0:
            after[to] = _before(x, plan, tails, n + m, at, width)
    return (F.silu(y) if silu else y), after


def _before(x: Tensor, plan: LinearPlan, tails: Tensor, place: int, at: int, width: int) -> Tensor:
    """Return the ``width`` inputs before row ``at``, oldest first; ``place`` is its place in the plan."""
    near, slot = int(plan.reach[place]), int(plan.back[place])
    older = x.new_zeros(width, x.shape[1]) if slot < 0 else tails[slot]
    return torch.cat((older[near:], x[at - near : at]))
