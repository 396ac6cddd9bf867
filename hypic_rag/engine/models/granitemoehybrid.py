"""Granite 4 hybrid, dense and mixture of experts: Mamba-2 layers and a few of full attention, most without rotary."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("granitemoehybrid",)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    rotary = cache_spec.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if layer.mamba is not None:
            layer.mamba = Mamba2(layer.mamba, cache_spec)
        else:
            AttentionHandle.give(layer.self_attn, config, cache_spec, rotary)
