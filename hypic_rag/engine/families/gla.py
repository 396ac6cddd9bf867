"""Gated Linear Attention: ``S_t = diag(g_t) S_{t-1} + k_t v_t^T``, read as ``q_t^T S_t``."""

from torch import Tensor

from hypic_rag.engine.families.decay import run_decay
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import outer, read
from hypic_rag.engine.families.transition import Diagonal


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """log_decay: (H, K)."""
    S = S * row.log_decay.exp()[..., None] + outer(row.k, row.v)
    return S, read(S, row.q)


FAMILY = Family(
    "gla", "Gated Linear Attention, arXiv 2312.06635", Diagonal(), run_decay, step, max_chunk=16, has_kernel=True
)
