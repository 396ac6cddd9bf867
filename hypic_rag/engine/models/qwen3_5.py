"""Qwen3.5 text, dense and mixture of experts: Gated DeltaNet layers, every fourth one full attention."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.attention import Seat
from hypic_rag.engine.families import gdn
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import Layout, LinearLayer
from hypic_rag.engine.models.mixer import Mixer, unit_length

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
            gdn.FAMILY,
            m.num_v_heads,
            m.head_k_dim,
            m.head_v_dim,
            channels=m.conv_dim,
            kernel=m.conv_kernel_size,
            in_chunks=True,
        )

    # What differs between the models that have this mixer: projections, the greatest write, and the output's names.

    def project(self, m: Any, x: Tensor) -> Projected:
        return Projected(m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x))

    def max_strength(self, m: Any) -> float:
        """Of writing: 2 lets a write turn a direction of the state around."""
        return 1.0

    def output(self, m: Any, out: Tensor, z: Tensor, n: int) -> Tensor:
        """out, z: (n * H, V), what was read and its gate. Returns (n, hidden)."""
        return m.out_proj(m.norm(out, z).reshape(n, -1))  # type: ignore[no-any-return]

    def mix(self, m: Any, x: Tensor) -> Tensor:
        p = self.project(m, x)
        if self.on_device is not None:
            out = self.on_device.gated_delta(self.slot, m, p.qkv, p.a, p.b, self.max_strength(m))
            return self.output(m, out.reshape(-1, m.head_v_dim), p.z.reshape(-1, m.head_v_dim), len(x))
        qkv = self.convolved(p.qkv, m.conv1d.weight, m.conv1d.bias)
        q, k, v = qkv.split((m.key_dim, m.key_dim, m.value_dim), dim=-1)
        q, k = (unit_length(t.reshape(-1, m.num_k_heads, m.head_k_dim)) for t in (q, k))
        repeats = m.num_v_heads // m.num_k_heads
        if repeats > 1:
            q, k = (t.repeat_interleave(repeats, dim=1) for t in (q, k))
        log_decay = -m.A_log.float().exp() * F.softplus(p.a.float() + m.dt_bias)
        v = v.reshape(-1, m.num_v_heads, m.head_v_dim).float()
        rows = Rows(q * m.head_k_dim**-0.5, k, v, log_decay, beta=p.b.sigmoid().float() * self.max_strength(m))
        out = self.recurred(rows).to(x.dtype).reshape(-1, m.head_v_dim)
        return self.output(m, out, p.z.reshape(-1, m.head_v_dim), len(x))


def prepare(model: Any, layout: Layout, mixer: type[GatedDeltaNet] = GatedDeltaNet) -> None:
    config = model.config
    rotary = layout.rotation(model.model.rotary_emb, config)  # none in some of OLMo Hybrid
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = mixer(layer.linear_attn, layout)
        else:
            Seat.give(layer.self_attn, config, layout, rotary)
