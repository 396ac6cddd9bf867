"""Retrieval-augmented generation from cached segments, on hybrid-attention models (HYPIC, arXiv 2607.01299)."""

from hypic_rag.lazy_import import lazy_exports

_EXPORTS = {
    "Entry": "cache",
    "SegmentCache": "cache",
    "SegmentKey": "cache",
    "Generation": "engine",
    "Policy": "engine",
    "Report": "engine",
    "Sampling": "engine",
    "SegmentEngine": "engine",
    "HypicError": "errors",
    "Prompt": "prompt",
    "PromptFormat": "prompt",
    "HypicLLM": "integrations.llama_index",
    "HypicQueryEngine": "integrations.llama_index",
    "HypicSynthesizer": "integrations.llama_index",
    "PrefillSegments": "integrations.llama_index",
    "Store": "retrieval",
}
__all__ = sorted(_EXPORTS)
__version__ = "0.1.0"
__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
