"""LlamaIndex's classes over ``hypic_rag.rag``. Names load on first use."""

from typing import TYPE_CHECKING

from hypic_rag.lazy_import import lazy_exports

if TYPE_CHECKING:
    from hypic_rag.integrations.llama_index.events import SegmentsAssembled as SegmentsAssembled
    from hypic_rag.integrations.llama_index.llm import HypicLLM as HypicLLM
    from hypic_rag.integrations.llama_index.query_engine import HypicQueryEngine as HypicQueryEngine
    from hypic_rag.integrations.llama_index.retriever import StoreRetriever as StoreRetriever
    from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer as HypicSynthesizer
    from hypic_rag.integrations.llama_index.transform import PrefillSegments as PrefillSegments

_MODULES = {
    "HypicLLM": "llm",
    "HypicQueryEngine": "query_engine",
    "HypicSynthesizer": "synthesizer",
    "PrefillSegments": "transform",
    "SegmentsAssembled": "events",
    "StoreRetriever": "retriever",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_exports(__name__, _MODULES)
