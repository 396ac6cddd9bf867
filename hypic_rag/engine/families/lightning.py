"""Lightning Attention: ``S_t = g S_{t-1} + k_t v_t^T`` with the decay of ALiBi-like slopes, read as ``q_t^T S_t``."""

import torch
from torch import Tensor

from hypic_rag.engine.families.decay import run_decay
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.retnet import step
from hypic_rag.engine.families.transition import Length


def slopes(n_heads: int) -> Tensor:
    """Return (H,) float64: 2^(-8/H), 2^(-16/H), ... where H is a power of two; else the
    rest of the next power's odd ones."""
    power = 1 << (n_heads.bit_length() - 1)
    first = 2.0 ** (-8.0 / power * torch.arange(1, power + 1, dtype=torch.float64))
    rest = 2.0 ** (-4.0 / power * (2 * torch.arange(n_heads - power, dtype=torch.float64) + 1))
    return torch.cat((first, rest))


FAMILY = Family("lightning", "Lightning Attention-2, arXiv 2401.04658", Length(), run_decay, step, has_kernel=True)
