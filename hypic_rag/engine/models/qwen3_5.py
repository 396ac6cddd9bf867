"""Qwen3.5 text, dense and mixture of experts: Gated DeltaNet layers, every fourth one full attention."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.families import gdn
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import AttentionLayer, Layout, LinearLayer
from hypic_rag.engine.models.mixer import Mixer, unit_length
from hypic_rag.engine.rotary import Rotary

MODEL_TYPES = ("qwen3_5_text", "qwen3_5_moe_text")


@dataclass(frozen=True)
class Projected:
    """One row a token. qkv: (N, C), before the convolution; z: (N, H * V), output gate; b, a: (N, H)."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class GatedDeltaNet(Mixer):
    def sizes(self, m: Any, layout: Layout) -> LinearLayer:
        return LinearLayer(
            gdn.FAMILY, m.num_v_heads, m.head_k_dim, m.head_v_dim, channels=m.conv_dim, kernel=m.conv_kernel_size
        )

    def project(self, m: Any, x: Tensor) -> Projected:
        return Projected(m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x))

    def mix(self, m: Any, x: Tensor) -> Tensor:
        p = self.project(m, x)
        qkv = self.convolved(p.qkv, m.conv1d.weight, m.conv1d.bias)
        q, k, v = qkv.split((m.key_dim, m.key_dim, m.value_dim), dim=-1)
        q, k = (unit_length(t.reshape(-1, m.num_k_heads, m.head_k_dim)) for t in (q, k))
        repeats = m.num_v_heads // m.num_k_heads
        if repeats > 1:
            q, k = (t.repeat_interleave(repeats, dim=1) for t in (q, k))
        log_decay = -m.A_log.float().exp() * F.softplus(p.a.float() + m.dt_bias)
        v = v.reshape(-1, m.num_v_heads, m.head_v_dim).float()
        out = self.recurred(Rows(q * m.head_k_dim**-0.5, k, v, log_decay, beta=p.b.sigmoid().float())).to(x.dtype)
        gated = m.norm(out.reshape(-1, m.head_v_dim), p.z.reshape(-1, m.head_v_dim))
        return m.out_proj(gated.reshape(len(x), -1))  # type: ignore[no-any-return]


def prepare(model: Any, layout: Layout, mixer: type[GatedDeltaNet] = GatedDeltaNet) -> None:
    config = model.config
    rotary = layout.rotary(Rotary.from_module(model.model.rotary_emb, config.rope_parameters))
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = mixer(layer.linear_attn, layout)
        else:
            m = layer.self_attn
            Seat.give(m, AttentionLayer(config.num_key_value_heads, m.head_dim, m.head_dim, rotary), layout)
