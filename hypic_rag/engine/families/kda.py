"""Kimi Delta Attention: ``S_t = (I - b_t k_t k_t^T) diag(g_t) S_{t-1} + b_t k_t v_t^T``, read as ``q_t^T S_t``."""

from torch import Tensor

from hypic_rag.engine.families.delta import run_delta
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import delta_write, read
from hypic_rag.engine.families.transition import Dense


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """log_decay: (H, K); beta: (H,)."""
    S = delta_write(S * row.log_decay.exp()[..., None], row)
    return S, read(S, row.q)


FAMILY = Family("kda", "Kimi Linear, arXiv 2510.26692", Dense(), run_delta, step, max_chunk=16, has_kernel=True)
