"""Mamba-2: ``S_t = exp(A dt_t) S_{t-1} + dt_t B_t x_t^T`` with one decay a head, read as ``C_t^T S_t``.

q is C, k is B, v is dt x; the skip ``D x`` belongs to the layer.
"""

from hypic_rag.engine.families.decay import run_decay
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.retnet import step
from hypic_rag.engine.families.transition import Scalar

FAMILY = Family("mamba2", "Mamba-2, arXiv 2405.21060", Scalar(), run_decay, step, has_kernel=True)
