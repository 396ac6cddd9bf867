"""Qwen3.5 text, dense and mixture of experts: Gated DeltaNet layers, every fourth one full attention."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import gdn
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer

MODEL_TYPES = ("qwen3_5_text", "qwen3_5_moe_text")


@dataclass(frozen=True)
class Projected:
    """One row a token. qkv: (N, C), before the convolution; z: (N, H * V), output gate; b, a: (N, H)."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class GatedDeltaNet(Mixer):
    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(
            gdn.FAMILY,
            m.num_v_heads,
            m.head_k_dim,
            m.head_v_dim,
            channels=m.conv_dim,
            kernel=m.conv_kernel_size,
            in_chunks=True,
        )

    # What differs between the models that have this mixer: projections, the write strength, and the output's names.

    def project(self, m: Any, x: Tensor) -> Projected:
        return Projected(m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x))

    def beta_scale(self, m: Any) -> float:
        """Return the greatest write strength: 2 lets a write turn a direction of the state around."""
        return 1.0

    def output(self, m: Any, out: Tensor, z: Tensor, n: int) -> Tensor:
        """out, z: (n * H, V), what was read and its gate. Returns (n, hidden)."""
        return m.out_proj(m.norm(out, z).reshape(n, -1))  # type: ignore[no-any-return]

    def mix(self, m: Any, x: Tensor) -> Tensor:
        p = self.project(m, x)
        out = self.gated_delta_rule(m, p.qkv, p.a, p.b, self.beta_scale(m))
        return self.output(m, out.reshape(-1, m.head_v_dim), p.z.reshape(-1, m.head_v_dim), len(x))


def prepare(model: Any, cache_spec: CacheSpec, mixer: type[GatedDeltaNet] = GatedDeltaNet) -> None:
    config = model.config
    rotary = cache_spec.rotation(model.model.rotary_emb, config)  # none in some of OLMo Hybrid
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = mixer(layer.linear_attn, cache_spec)
        else:
            AttentionHandle.give(layer.self_attn, config, cache_spec, rotary)
