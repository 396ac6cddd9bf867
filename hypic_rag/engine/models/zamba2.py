"""Zamba2: Mamba-2 layers, some behind a full-attention block whose weights several layers share."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.layout import Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("zamba2",)


def prepare(model: Any, layout: Layout) -> None:
    config, rotary = model.config, None
    if config.use_mem_rope:
        rotary = layout.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if hasattr(layer, "shared_transformer"):
            # Each layer has a block of its own; only the weights are tied.
            AttentionHandle.give(layer.shared_transformer.self_attn, config, layout, rotary)
            layer = layer.mamba_decoder
        layer.mamba = Mamba2(layer.mamba, layout)
