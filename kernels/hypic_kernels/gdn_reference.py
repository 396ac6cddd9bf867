"""What a Gated DeltaNet layer's recurrence reads, from its projections, as the papers and Hugging Face have it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_kernels import convolution_reference
from hypic_kernels.plan import LinearPlan


def prepare(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    plan: LinearPlan,
    tails: Tensor,
    n_k_heads: int,
    n_v_heads: int,
    k_dim: int,
    v_dim: int,
    beta_scale: float,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Compute gdn.prepare, by its arguments. Returns its q, k, v, log_decay, beta, and the
    slab with the new tails in it."""
    y, after = convolution_reference.convolve(qkv, weight, bias, True, plan, tails)
    key_dim = n_k_heads * k_dim
    q, k, v = y.to(qkv.dtype).split((key_dim, key_dim, n_v_heads * v_dim), dim=-1)
    q, k = (_unit_length(t.reshape(-1, n_k_heads, k_dim).float()) for t in (q, k))
    log_decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    beta = beta_scale * b.sigmoid().float()
    return (q * k_dim**-0.5, k, v.reshape(-1, n_v_heads, v_dim), log_decay, beta), after


def _unit_length(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)
