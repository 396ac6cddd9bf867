"""Documents in, ranked passages out. Names load on first use."""

from typing import TYPE_CHECKING

from hypic_rag.lazy_import import lazy_exports

if TYPE_CHECKING:
    from hypic_rag.retrieval.embedder import Embedder as Embedder
    from hypic_rag.retrieval.ingest import plan_again as plan_again
    from hypic_rag.retrieval.ingest import plan_documents as plan_documents
    from hypic_rag.retrieval.ingest import plan_ingest as plan_ingest
    from hypic_rag.retrieval.ingest import run_ingest as run_ingest
    from hypic_rag.retrieval.store import Store as Store

_MODULES = {
    "Embedder": "embedder",
    "Store": "store",
    "plan_again": "ingest",
    "plan_documents": "ingest",
    "plan_ingest": "ingest",
    "run_ingest": "ingest",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_exports(__name__, _MODULES)
