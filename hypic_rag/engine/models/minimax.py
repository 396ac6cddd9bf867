"""MiniMax-Text-01 and M1: Lightning Attention layers with constant decays, every eighth one full attention."""

from typing import Any

from torch import Tensor

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import lightning
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer

MODEL_TYPES = ("minimax",)


class MiniMaxLightning(Mixer):
    returns = 2

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        # Made anew: the buffer that holds them is rounded to the model's type.
        rates = -m.get_slope_rate().float().flatten().to(m.qkv_proj.weight.device)
        return LinearLayer(lightning.FAMILY, m.num_attention_heads, m.head_dim, m.head_dim, rates=rates)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        qkv = m.act_fn(m.qkv_proj(x)).view(len(x), m.num_attention_heads, 3 * m.head_dim)
        q, k, v = qkv.float().split(m.head_dim, dim=-1)
        assert self.layer.rates is not None
        log_decay = self.layer.rates.expand(len(x), -1)
        out = m.norm(self.recurrent_scan(RecurrenceInputs(q, k, v, log_decay)).to(x.dtype).flatten(1))
        return m.out_proj(m.output_gate(x).sigmoid() * out)  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    rotary = cache_spec.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        if layer.block_type == "linear_attention":
            layer.self_attn = MiniMaxLightning(layer.self_attn, cache_spec)
        else:
            AttentionHandle.give(layer.self_attn, config, cache_spec, rotary, config.sliding_window)
