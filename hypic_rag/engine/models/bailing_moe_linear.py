"""Ring linear 2.0 and 2.5: Lightning Attention with rotated keys, the last layer of a group grouped-query or latent.

Of code that comes with the checkpoint; the modules are found by their names in it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import lightning
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.models.bailing_hybrid import RotatedLatentAttention
from hypic_rag.engine.models.mixer import Mixer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("bailing_moe_linear", "bailing_moe_v2_5")
Angles = tuple[Tensor, Tensor]
"""cos and sin, (1, N, rotated dims) each."""


class BailingLightning(Mixer):
    """Keys are rotated, and so the state is: it is kept at local positions and turned where it is placed."""

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        # Made anew: a buffer that no checkpoint has need not survive the loading.
        depth = (m.layer_idx - 1) / (m.config.num_hidden_layers - 1)  # below 0 at first, as in its own code
        rates = -lightning.slopes(m.num_heads) * (1 - depth + 1e-5)
        rotary = cache_spec.rotaries[0]
        return LinearLayer(lightning.FAMILY, m.num_heads, m.head_dim, m.head_dim, rates=rates.float(), rotary=rotary)

    def forward(self, hidden_states: Tensor, *_: Any, position_embeddings: Angles | None = None, **__: Any) -> Any:
        m, x = self.original, hidden_states[0]
        q, k, v = (t.float() for t in projected(m, x, position_embeddings))
        assert self.layer.rates is not None
        log_decay = self.layer.rates.to(x.device).expand(len(x), -1)
        read = self.recurrent_scan(RecurrenceInputs(q * m.head_dim**-0.5, k, v, log_decay))
        out = m.g_norm(read.to(x.dtype).flatten(1))
        return m.dense(out * m.g_proj(x).sigmoid())[None], None, None


class GroupedQueryAttention(nn.Module):
    """Swapped, because the model does not ask transformers for its attention function."""

    def __init__(self, original: Any, cache_spec: CacheSpec, rotary: Rotary):
        super().__init__()
        self.original = original
        layer = AttentionLayer(original.num_key_value_heads, original.head_dim, original.head_dim, rotary)
        self.handle = AttentionHandle.take(layer, cache_spec)

    def forward(self, hidden_states: Tensor, *_: Any, position_embeddings: Angles | None = None, **__: Any) -> Any:
        m, x = self.original, hidden_states[0]
        q, k, v = (t.transpose(0, 1) for t in projected(m, x, position_embeddings))
        out = self.handle.attend(q, k, v, AttentionParams(m.head_dim**-0.5))
        return m.dense(out.transpose(0, 1).flatten(1))[None], None, None


class Latent(RotatedLatentAttention):
    def __init__(self, original: Any, cache_spec: CacheSpec, rotary: Rotary):
        super().__init__(original, cache_spec, rotary)
        original.o_proj = original.dense  # its name here

    def forward(self, hidden_states: Tensor, *_: Any, position_embeddings: Angles | None = None, **__: Any) -> Any:
        return *super().forward(hidden_states, position_embeddings), None

    def gated(self, m: Any, x: Tensor, out: Tensor) -> Tensor:
        return out


def projected(m: Any, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
    """Project x to queries, keys and values (N, H, D); queries and keys normalized where
    the model has it so, and rotated."""
    heads = (m.num_heads, m.num_key_value_heads, m.num_key_value_heads)
    q, k, v = m.query_key_value(x).view(len(x), -1, m.head_dim).split(heads, dim=1)
    if m.config.use_qk_norm:
        q, k = m.query_layernorm(q), m.key_layernorm(k)
    assert angles is not None
    cos, sin = (t[0, :, None] for t in angles)
    return rotated(q, cos, sin), rotated(k, cos, sin), v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dims of x, as many as cos and sin have; their halves are pairs."""
    turning, passing = x.tensor_split((cos.shape[-1],), dim=-1)
    first, second = turning.chunk(2, dim=-1)
    return torch.cat((turning * cos + torch.cat((-second, first), dim=-1) * sin, passing), dim=-1)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config, base = model.config, model.model
    parameters = getattr(config, "rope_parameters", None) or {
        "rope_theta": config.rope_theta,
        **(config.rope_scaling or {}),
    }
    rotary = cache_spec.rotary(Rotary.from_module(base.rotary_emb, parameters))
    for layer in base.layers[: config.num_hidden_layers]:  # those after them predict further tokens in training
        m = layer.attention
        if layer.attention_layer_type == "linear_attention":
            layer.attention = BailingLightning(m, cache_spec)
        elif hasattr(m, "kv_b_proj"):
            # The rotated dims stand behind the latent, and what is kept has its pairs as halves.
            latent = Rotary.from_module(base.rotary_emb_mla, parameters, first=config.kv_lora_rank)
            layer.attention = Latent(m, cache_spec, cache_spec.rotary(latent))
        else:
            layer.attention = GroupedQueryAttention(m, cache_spec, rotary)
