"""Token by token in the dtype given, without options: what every family is held to."""

import torch
from torch import Tensor


def gdn(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """Gated DeltaNet. q, k: (N, H, K); v: (N, H, V); log_decay, beta: (N, H); R: (H, K, V), not modified.

    Returns the outputs (N, H, V) and the state after the last row (H, K, V).
    """
    outputs = []
    for t in range(q.shape[0]):
        R = R * log_decay[t].exp()[:, None, None]
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], R)
        R = R + torch.einsum("hk,hv->hkv", k[t] * beta[t][:, None], error)
        outputs.append(torch.einsum("hk,hkv->hv", q[t], R))
    return torch.stack(outputs), R
