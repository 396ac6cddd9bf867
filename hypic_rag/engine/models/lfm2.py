"""LFM2, dense and mixture of experts, and LFM3: gated short convolutions without a state, and full attention."""

from typing import Any

from torch import Tensor

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer

MODEL_TYPES = ("lfm2", "lfm2_moe", "lfm3")


class ShortConvolution(Mixer):
    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(None, channels=m.conv.in_channels, kernel=m.conv_kernel_size)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        B, C, x = m.in_proj(x).chunk(3, dim=-1)
        return m.out_proj(C * self.causal_conv1d(B * x, m.conv.weight, m.conv.bias, silu=False))  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config, base = model.config, model.model
    module = base.pos_emb if hasattr(base, "pos_emb") else base.rotary_emb
    kinds = set(config.layer_types) - {"conv"}
    rotaries = {kind: cache_spec.rotation(module, config, kind) for kind in sorted(kinds)}
    for layer, kind in zip(model.model.layers, config.layer_types, strict=True):
        if kind == "conv":
            layer.conv = ShortConvolution(layer.conv, cache_spec)
        else:
            window = config.sliding_window if kind == "sliding_attention" else None
            AttentionHandle.give(layer.self_attn, config, cache_spec, rotaries[kind], window)
