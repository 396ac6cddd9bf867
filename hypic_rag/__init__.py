"""Retrieval-augmented generation from cached segments, on hybrid-attention models (HYPIC, arXiv 2607.01299)."""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Entry": "hypic_rag.cache",
    "SegmentCache": "hypic_rag.cache",
    "SegmentKey": "hypic_rag.cache",
    "Generation": "hypic_rag.engine",
    "Policy": "hypic_rag.engine",
    "Report": "hypic_rag.engine",
    "Sampling": "hypic_rag.engine",
    "SegmentEngine": "hypic_rag.engine",
    "HypicError": "hypic_rag.errors",
    "Prompt": "hypic_rag.prompt",
    "PromptFormat": "hypic_rag.prompt",
    "HypicLLM": "hypic_rag.integrations.llama_index",
    "HypicQueryEngine": "hypic_rag.integrations.llama_index",
    "HypicSynthesizer": "hypic_rag.integrations.llama_index",
    "PrefillSegments": "hypic_rag.integrations.llama_index",
    "Store": "hypic_rag.retrieval",
}
__all__ = sorted(_EXPORTS)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import hypic_rag`` loads neither torch nor LlamaIndex."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hypic_rag' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
