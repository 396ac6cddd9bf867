"""DeltaNet: ``S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T``, read as ``q_t^T S_t``; log_decay is zero."""

from torch import Tensor

from hypic_rag.engine.families.delta import run_delta
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import delta_write, read
from hypic_rag.engine.families.transition import Dense


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """beta: (H,)."""
    S = delta_write(S, row)
    return S, read(S, row.q)


FAMILY = Family("deltanet", "DeltaNet, arXiv 2406.06484", Dense(), run_delta, step, has_kernel=True)
