"""Choice of experts by a sort of each row's probabilities, in float32."""

import torch
from torch import Tensor


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See ``router.route``."""
    probabilities = logits.float().softmax(-1)
    index = probabilities.argsort(dim=-1, descending=True, stable=True)[:, :k]
    chosen = torch.gather(probabilities, 1, index)
    return index, (chosen / chosen.sum(-1, keepdim=True)).to(logits.dtype)
