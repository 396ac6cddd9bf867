"""Retention: ``S_t = g S_{t-1} + k_t v_t^T`` with a constant decay a head, read as ``q_t^T S_t``."""

from torch import Tensor

from hypic_rag.engine.families.decay import run_decay
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import outer, read
from hypic_rag.engine.families.transition import Length


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """log_decay: (H,), the same in every row."""
    S = S * row.log_decay.exp()[:, None, None] + outer(row.k, row.v)
    return S, read(S, row.q)


FAMILY = Family("retnet", "RetNet, arXiv 2307.08621", Length(), run_decay, step, has_kernel=True)
