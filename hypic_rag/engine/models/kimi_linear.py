"""Kimi Linear: Kimi Delta Attention layers, every fourth one multi-head latent attention without positions."""

from typing import Any

from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.kda_mixer import KimiDeltaAttention
from hypic_rag.engine.models.latent_attention import LatentAttention

MODEL_TYPES = ("kimi_linear",)


class LowRankGated(KimiDeltaAttention):
    def output_gate(self, m: Any, x: Tensor) -> Tensor:
        return m.g_b_proj(m.g_a_proj(x))  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    for layer in model.model.layers:
        mixer = LowRankGated if layer.block_type == "linear_attention" else LatentAttention
        layer.self_attn = mixer(layer.self_attn, cache_spec)
