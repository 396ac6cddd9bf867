"""RetNet and GLA of flash-linear-attention: states that only decay, by a constant a head or by a gate a channel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import gla, retnet
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models import fla_mixer
from hypic_rag.engine.models.fla_mixer import FlaMixer

MODEL_TYPES = ("retnet", "gla")
REGISTERED_BY = fla_mixer.PACKAGE


class Retention(FlaMixer):
    """Queries and keys are rotated, so the state is too."""

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        rates = torch.log1p(-(2.0 ** (-5.0 - torch.arange(m.num_heads, dtype=torch.float64)))).float()
        rotary = fla_mixer.rotation(m.rotary, cache_spec)
        heads, channels, kernel = m.num_heads, *self.convolution(m)
        return LinearLayer(retnet.FAMILY, heads, m.head_k_dim, m.head_v_dim, channels, kernel, rates, rotary)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(m, x)
        if m.feature_map_fn is not None:
            q, k = m.feature_map_fn(q), m.feature_map_fn(k)
        rotary, rates = self.layer.rotary, self.layer.rates
        assert rotary is not None and rates is not None
        cos, sin = (t[:, None] for t in rotary.at(self.positions))
        q, k = rotary.turn(q, cos, sin), rotary.turn(k, cos, sin)
        k, v = (t.repeat_interleave(m.num_kv_groups, dim=1) for t in (k, v))
        log_decay = rates.to(x.device).expand(len(x), -1)
        out = self.recurrent_scan(RecurrenceInputs(q * m.head_k_dim**-0.5, k, v.float(), log_decay)).to(x.dtype)
        return m.o_proj(gated(m, out, x))  # type: ignore[no-any-return]


class GatedLinearAttention(FlaMixer):
    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(gla.FAMILY, m.num_heads, m.head_k_dim, m.head_v_dim, *self.convolution(m))

    def mix(self, m: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(m, x)
        gate = m.gk_proj(x).unflatten(-1, (-1, m.head_k_dim)).float()
        log_decay = F.logsigmoid(gate) / m.gate_logit_normalizer
        if m.clamp_min is not None:
            log_decay = log_decay.clamp_min(m.clamp_min)
        if m.feature_map_fn is not None:
            q, k = m.feature_map_fn(q), m.feature_map_fn(k)
        k, v, log_decay = (t.repeat_interleave(m.num_kv_groups, dim=1) for t in (k, v, log_decay))
        rows = RecurrenceInputs(q.float() * m.head_k_dim**-0.5, k.float(), v.float(), log_decay)
        return m.o_proj(gated(m, self.recurrent_scan(rows).to(x.dtype), x))  # type: ignore[no-any-return]


def gated(m: Any, out: Tensor, x: Tensor) -> Tensor:
    """Apply the norm of each head, and the output gate where there is one. out: (N, H, V). Returns (N, H * V)."""
    if not m.use_output_gate:
        return m.g_norm(out).flatten(1)  # type: ignore[no-any-return]
    gate = m.g_proj(x)
    if m.fuse_norm_and_gate:
        return m.g_norm_swish_gate(out, gate.view_as(out)).flatten(1)  # type: ignore[no-any-return]
    return m.g_norm(out).flatten(1) * m.gate_fn(gate)  # type: ignore[no-any-return]


MIXERS = {"retnet": Retention, "gla": GatedLinearAttention}


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    fla_mixer.swap(model, cache_spec, MIXERS[model.config.model_type])
