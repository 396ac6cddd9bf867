"""Zamba2: Mamba-2 layers, some behind a full-attention block whose weights several layers share."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("zamba2",)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config, rotary = model.config, None
    if config.use_mem_rope:
        rotary = cache_spec.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if hasattr(layer, "shared_transformer"):
            # Each layer has a block of its own; only the weights are tied.
            AttentionHandle.give(layer.shared_transformer.self_attn, config, cache_spec, rotary)
            layer = layer.mamba_decoder
        layer.mamba = Mamba2(layer.mamba, cache_spec)
