"""Granite 4 hybrid, dense and mixture of experts: Mamba-2 layers and a few of full attention, most without rotary."""

from typing import Any

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.layout import AttentionLayer, Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("granitemoehybrid",)


def prepare(model: Any, layout: Layout) -> None:
    config, rotation = model.config, model.model.rotary_emb
    rotary = None if rotation is None else layout.rotary(Rotary.from_module(rotation, config.rope_parameters))
    for layer in model.model.layers:
        if layer.mamba is not None:
            layer.mamba = Mamba2(layer.mamba, layout)
        else:
            m = layer.self_attn
            Seat.give(m, AttentionLayer(config.num_key_value_heads, m.head_dim, m.head_dim, rotary), layout)
