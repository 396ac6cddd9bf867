"""Mixture-of-experts layer, one pair of a row and an expert after the other, in float64."""

import torch
import torch.nn.functional as F
from torch import Tensor


def experts(
    x: Tensor, index: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, n_rows: Tensor | None = None
) -> Tensor:
    """See ``experts.experts``. Returns (N, hidden) float64."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for row in range(len(x) if n_rows is None else int(n_rows)):
        for choice, expert in enumerate(index[row].tolist()):
            if 0 <= expert < len(gate_up):
                gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
                out[row] += weights[row, choice] * (down[expert].double() @ (F.silu(gate) * up))
    return out
