"""Bamba: Mamba-2 layers and a few full-attention layers."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.layout import Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("bamba",)


def prepare(model: Any, layout: Layout) -> None:
    config = model.config
    rotary = layout.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mamba = Mamba2(layer.mamba, layout)
        else:
            AttentionHandle.give(layer.self_attn, config, layout, rotary)
