"""Attention over keys and values that lie in one tensor."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.passes.base import AttentionParams


def causal(q: Tensor, k: Tensor, v: Tensor, params: AttentionParams, window: int | None) -> Tensor:
    """Attend causally over rows at consecutive positions that see nothing but themselves.

    q: (Hq, n, D); k, v: (H, n, D). window: tokens that a row sees, itself included; None is all before it.
    """
    n = q.shape[1]
    if params.is_plain and (window is None or n <= window):
        return dense(q, k, v, None, params)
    mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    return dense(q, k, v, mask if window is None else mask.triu(1 - window), params)


def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, params: AttentionParams) -> Tensor:
    """Attend to all keys at once. Heads of q may share those of k and v.

    q: (Hq, N, D); k: (H, L, D); v: (H, L, Dv). mask: (N, L), True where seen; None is causal. Returns (Hq, N, Dv).
    """
    n_shared = k.shape[0]
    if n_shared == 1:  # MLA's latent and multi-query attention: a view will do
        k, v = (t.expand(q.shape[0], -1, -1) for t in (k, v))
    elif n_shared < q.shape[0]:
        k, v = (t.repeat_interleave(q.shape[0] // n_shared, dim=0) for t in (k, v))
    if params.is_plain:
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=params.scale
        )[0]
    assert mask is not None
    scores = (q * params.scale @ k.mT).float().masked_fill(~mask, float("-inf"))
    return params.weights(scores).to(v.dtype) @ v
