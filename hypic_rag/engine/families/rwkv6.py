"""RWKV-6: ``S_t = diag(g_t) S_{t-1} + k_t v_t^T``, read before the write: ``q_t^T (S_{t-1} + diag(u) k_t v_t^T)``."""

from torch import Tensor

from hypic_rag.engine.families.decay import run_decay
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import outer, read
from hypic_rag.engine.families.transition import Diagonal


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """log_decay: (H, K); bonus: (H, K), the u above."""
    assert row.bonus is not None
    written = outer(row.k, row.v)
    out = read(S + row.bonus[..., None] * written, row.q)
    return S * row.log_decay.exp()[..., None] + written, out


FAMILY = Family("rwkv6", "RWKV-6 (Finch), arXiv 2404.05892", Diagonal(), run_decay, step, 16)
