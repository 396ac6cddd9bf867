"""RWKV-6 of flash-linear-attention: time mixing with data-dependent shifts and decays, and channel mixing."""

from typing import Any

import torch
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import rwkv6
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models import fla_mixer
from hypic_rag.engine.models.mixer import Mixer

MODEL_TYPES = ("rwkv6",)
REGISTERED_BY = fla_mixer.PACKAGE


class Rwkv6TimeMix(Mixer):
    returns = 3

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(rwkv6.FAMILY, m.num_heads, m.head_k_dim, m.head_v_dim, channels=m.hidden_size, kernel=2)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        delta = self.token_shift(x) - x
        r, w, k, v, g = (
            project(x, mu, delta)
            for project, mu in zip((m.r_proj, m.w_proj, m.k_proj, m.v_proj, m.g_proj), shares(m, x, delta), strict=True)
        )
        r, w, k, v = (t.unflatten(-1, (m.num_heads, -1)).float() for t in (r, w, k, v))
        out = self.recurrent_scan(RecurrenceInputs(r, k, v, -w.exp(), bonus=m.bonus.float())).to(x.dtype)
        return m.o_proj(m.g_norm(out.flatten(1)) * m.gate_fn(g))  # type: ignore[no-any-return]


def shares(m: Any, x: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
    """Compute how much of the step to the row before goes into r, w, k, v and g: (N, hidden) each."""
    low_rank, activation, back = m.x_proj
    inner = activation(low_rank(x, delta)).unflatten(-1, (5, -1))
    weight = back.weight.view(m.hidden_size, 5, -1)
    return (torch.einsum("nir,hir->nih", inner, weight) + m.x_bias).unbind(1)  # type: ignore[no-any-return]


class Rwkv6ChannelMix(Mixer):
    """The feed-forward layer, which reads the row before."""

    returns = 2

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(None, channels=m.hidden_size, kernel=2)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        delta = self.token_shift(x) - x
        value = m.value(m.act_fn(m.key(x, delta)))
        return m.receptance(x, delta).sigmoid() * value  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    fla_mixer.swap(model, cache_spec, Rwkv6TimeMix)
    for block in model.model.layers:
        block.ffn = Rwkv6ChannelMix(block.ffn, cache_spec)
