"""RMS norms in torch's own operations, rounded where transformers rounds."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    """See ``norms.rms_norm``."""
    if one_plus:
        return (_normed(x, eps) * (1.0 + weight.float())).to(x.dtype)
    return (weight * _normed(x, eps).to(x.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool) -> tuple[Tensor, Tensor]:
    """See ``norms.add_rms_norm``."""
    total = residual + x
    return rms_norm(total, weight, eps, one_plus), total


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See ``norms.gated_rms_norm``."""
    weighted = weight * _normed(x, eps).to(x.dtype)
    return (weighted * F.silu(gate.float())).to(x.dtype)


def _normed(x: Tensor, eps: float) -> Tensor:
    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
