"""Zamba2: Mamba-2 layers, some behind a full-attention block whose weights several layers share."""

from typing import Any

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.layout import AttentionLayer, Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("zamba2",)


def prepare(model: Any, layout: Layout) -> None:
    config, rotary = model.config, None
    if config.use_mem_rope:
        rotary = layout.rotary(Rotary.from_module(model.model.rotary_emb, config.rope_parameters))
    for layer in model.model.layers:
        if hasattr(layer, "shared_transformer"):
            # Each layer has a block of its own; only the weights are tied.
            m = layer.shared_transformer.self_attn
            Seat.give(m, AttentionLayer(config.num_key_value_heads, m.head_dim, m.head_dim, rotary), layout)
            layer = layer.mamba_decoder
        layer.mamba = Mamba2(layer.mamba, layout)
