"""Nemotron-H: one block a layer, a Mamba-2 mixer, full attention without rotary, an MLP or experts."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("nemotron_h",)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    for layer in model.model.layers:
        m = layer.mixer
        if layer.block_type == "linear_attention":
            layer.mixer = Mamba2(m, cache_spec)
        elif layer.block_type == "full_attention":
            AttentionHandle.give(m, config, cache_spec)
