"""Mamba-2 (also Codestral Mamba): Mamba-2 layers alone, no attention."""

from typing import Any

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("mamba2",)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    for layer in model.backbone.layers:
        layer.mixer = Mamba2(layer.mixer, cache_spec)
