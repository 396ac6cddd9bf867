"""LlamaIndex side: ingestion, index, query engine, LLM. Names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypic_rag.retrieval.embedder import Embedder as Embedder
    from hypic_rag.retrieval.events import SegmentsAssembled as SegmentsAssembled
    from hypic_rag.retrieval.ingest import plan_documents as plan_documents
    from hypic_rag.retrieval.ingest import plan_ingest as plan_ingest
    from hypic_rag.retrieval.ingest import run_ingest as run_ingest
    from hypic_rag.retrieval.llm import HypicLLM as HypicLLM
    from hypic_rag.retrieval.query_engine import HypicQueryEngine as HypicQueryEngine
    from hypic_rag.retrieval.retriever import StoreRetriever as StoreRetriever
    from hypic_rag.retrieval.store import Store as Store
    from hypic_rag.retrieval.synthesizer import HypicSynthesizer as HypicSynthesizer
    from hypic_rag.retrieval.transform import PrefillSegments as PrefillSegments

_MODULES = {
    "Embedder": "embedder",
    "HypicLLM": "llm",
    "HypicQueryEngine": "query_engine",
    "HypicSynthesizer": "synthesizer",
    "PrefillSegments": "transform",
    "SegmentsAssembled": "events",
    "Store": "store",
    "StoreRetriever": "retriever",
    "plan_documents": "ingest",
    "plan_ingest": "ingest",
    "run_ingest": "ingest",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hypic_rag.retrieval' has no attribute {name!r}")
    return getattr(import_module(f"hypic_rag.retrieval.{_MODULES[name]}"), name)
