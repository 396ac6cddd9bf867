"""Qwen3.5 text, dense and mixture of experts: Gated DeltaNet layers, every fourth one full attention."""

from typing import Any

from torch import Tensor

from hypic_rag.engine.models.gdn_mixer import GDNMixer, Projected
from hypic_rag.engine.models.layout import AttentionLayer, Layout, LinearLayer
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("qwen3_5_text", "qwen3_5_moe_text")


def prepare(model: Any) -> Layout:
    return swap_gdn(model, project)


def project(m: Any, x: Tensor) -> Projected:
    return Projected(m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x))


def swap_gdn(model: Any, project: Any) -> Layout:
    """Swap every ``linear_attn``; attention goes through the registered interface and stays."""
    layers: list[LinearLayer | AttentionLayer] = []
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = GDNMixer(layer.linear_attn, project)
            layers.append(layer.linear_attn.sizes)
        else:
            layers.append(AttentionLayer(model.config.num_key_value_heads, layer.self_attn.head_dim))
    return Layout(tuple(layers), Rotary.from_module(model.model.rotary_emb, model.config.rope_parameters))
