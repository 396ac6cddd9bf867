"""Ling 3 (Bailing hybrid): Kimi Delta Attention layers, the last of every group multi-head latent attention."""

from typing import Any

import torch
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.kda_mixer import KimiDeltaAttention
from hypic_rag.engine.models.latent_attention import LatentAttention
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("bailing_hybrid",)
REFUSED = {
    "BailingMoeV2_5ForCausalLM": "Ring and Ling 2.5 declare the type of Ling 3, whose layers they do not have; "
    "their own code does not load under transformers 5"
}


class Gated(KimiDeltaAttention):
    def output_gate(self, m: Any, x: Tensor) -> Tensor:
        return m.g_proj(x)  # type: ignore[no-any-return]


class RotatedLatentAttention(LatentAttention):
    def rotated(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> Tensor:
        """Rotate queries or keys as the model does: pairs are neighbours before the rotation and halves after it."""
        assert position_embeddings is not None
        cos, sin = (t[0] for t in position_embeddings)
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.cat((first, second), dim=-1) * cos + torch.cat((-second, first), dim=-1) * sin

    def gated(self, m: Any, x: Tensor, out: Tensor) -> Tensor:
        gate: Tensor = m.g_proj(x).float().sigmoid()  # one a head
        return out * gate.to(out.dtype)[..., None]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    # The rotated dims stand behind the latent, and what is kept has its pairs as halves.
    parameters = config.rope_parameters
    rotary = cache_spec.rotary(Rotary.from_module(model.model.rotary_emb, parameters, first=config.kv_lora_rank))
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.self_attn = Gated(layer.self_attn, cache_spec)
        else:
            layer.self_attn = RotatedLatentAttention(layer.self_attn, cache_spec, rotary)
