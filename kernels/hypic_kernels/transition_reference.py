"""The transition of a segment, row by row in float64: the independent form of ``transition.transitions``."""

import torch
from torch import Tensor


def transitions(k: Tensor, beta: Tensor, log_decay: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """Compute T of each segment, row by row. k: (N, Hk, K). beta, log_decay: (N, H). Returns (S, H, K, K) float64:
    ``prod_t e^{g_t} (I - b_t k_t k_t^T)``."""
    n_heads, dim = beta.shape[1], k.shape[-1]
    k = k.double().repeat_interleave(n_heads // k.shape[1], dim=1)
    T = torch.eye(dim, dtype=torch.float64, device=k.device).expand(len(start), n_heads, -1, -1).clone()
    for s, (first, last) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        for t in range(first, last):
            T[s] *= log_decay[t].double().exp()[:, None, None]
            read = torch.einsum("hk,hkv->hv", k[t], T[s])
            T[s] -= beta[t].double()[:, None, None] * k[t][:, :, None] * read[:, None, :]
    return T
