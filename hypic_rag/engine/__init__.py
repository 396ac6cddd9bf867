"""From prompt and cache to tokens."""

from hypic_rag.engine.engine import SegmentEngine
from hypic_rag.engine.outputs import (
    Generation,
    PrefillReport,
    Report,
    Score,
    SegmentUse,
    StepOutput,
    StreamEvent,
)
from hypic_rag.engine.policy import Policy, Sampling

__all__ = [
    "Generation",
    "Policy",
    "PrefillReport",
    "Report",
    "Sampling",
    "Score",
    "SegmentEngine",
    "SegmentUse",
    "StepOutput",
    "StreamEvent",
]
