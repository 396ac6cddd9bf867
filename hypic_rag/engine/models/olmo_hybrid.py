"""OLMo Hybrid: Gated DeltaNet layers with write strengths up to two, every fourth one full attention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.families import gdn
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import AttentionLayer, Layout, LinearLayer
from hypic_rag.engine.models.mixer import Mixer, unit_length
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("olmo_hybrid",)


class GatedDeltaNet(Mixer):
    def sizes(self, m: Any, layout: Layout) -> LinearLayer:
        return LinearLayer(
            gdn.FAMILY, m.num_v_heads, m.head_k_dim, m.head_v_dim, channels=m.conv_dim, kernel=m.conv_kernel_size
        )

    def mix(self, m: Any, x: Tensor) -> Tensor:
        qkv = torch.cat((m.q_proj(x), m.k_proj(x), m.v_proj(x)), dim=-1)
        qkv = self.convolved(qkv, m.conv1d.weight, m.conv1d.bias)
        q, k, v = qkv.split((m.key_dim, m.key_dim, m.value_dim), dim=-1)
        repeats = m.num_v_heads // m.num_k_heads
        q, k = (
            unit_length(t.reshape(len(x), m.num_k_heads, m.head_k_dim)).repeat_interleave(repeats, dim=1)
            for t in (q, k)
        )
        v = v.reshape(len(x), m.num_v_heads, m.head_v_dim).float()
        log_decay = -m.A_log.float().exp() * F.softplus(m.a_proj(x).float() + m.dt_bias)
        beta = m.b_proj(x).sigmoid().float() * (2 if m.allow_neg_eigval else 1)
        out = self.recurred(Rows(q * m.head_k_dim**-0.5, k, v, log_decay, beta)).to(x.dtype)
        gated = m.o_norm(out.reshape(-1, m.head_v_dim), m.g_proj(x).reshape(-1, m.head_v_dim))
        return m.o_proj(gated.reshape(len(x), -1))  # type: ignore[no-any-return]


def prepare(model: Any, layout: Layout) -> None:
    config, module = model.config, model.model.rotary_emb
    # The released checkpoints have no positions at all.
    rotary = None if module is None else layout.rotary(Rotary.from_module(module, config.rope_parameters))
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = GatedDeltaNet(layer.linear_attn, layout)
        else:
            m = layer.self_attn
            Seat.give(m, AttentionLayer(config.num_key_value_heads, m.head_dim, m.head_dim, rotary), layout)
