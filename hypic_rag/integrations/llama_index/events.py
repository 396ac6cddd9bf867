"""What this package adds to LlamaIndex's instrumentation events."""

from typing import Any

from llama_index.core.instrumentation.events import BaseEvent


class SegmentsAssembled(BaseEvent):
    """An answer was made from segments; sent once its generation has ended."""

    query: str
    n_segments: int
    n_hits: int
    n_misses: int
    n_live: int  # too short to be cached, run live
    n_dropped: int  # chunks that did not fit the context
    prompt_tokens: int
    computed_tokens: int
    ttft_ms: float
    segments: list[dict[str, Any]]  # node_id, n_tokens, tier, miss_reason of each, in the prompt's order

    @classmethod
    def class_name(cls) -> str:
        return "SegmentsAssembled"
