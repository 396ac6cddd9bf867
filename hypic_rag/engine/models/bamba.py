"""Bamba: Mamba-2 layers and a few full-attention layers."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("bamba",)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    rotary = cache_spec.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mamba = Mamba2(layer.mamba, cache_spec)
        else:
            AttentionHandle.give(layer.self_attn, config, cache_spec, rotary)
