"""Bamba: Mamba-2 layers and a few full-attention layers."""

from typing import Any

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.layout import AttentionLayer, Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("bamba",)


def prepare(model: Any, layout: Layout) -> None:
    config = model.config
    rotary = layout.rotary(Rotary.from_module(model.model.rotary_emb, config.rope_parameters))
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.mamba = Mamba2(layer.mamba, layout)
        else:
            m = layer.self_attn
            Seat.give(m, AttentionLayer(config.num_key_value_heads, m.head_dim, m.head_dim, rotary), layout)
