"""RWKV-7 of flash-linear-attention: time mixing by a generalized delta rule, and channel mixing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import rwkv7
from hypic_rag.engine.families.delta import l2norm
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models import fla_mixer
from hypic_rag.engine.models.mixer import Mixer
from hypic_rag.errors import UnsupportedModel

MODEL_TYPES = ("rwkv7",)
REGISTERED_BY = fla_mixer.PACKAGE
FASTEST = -0.6065306597126334  # log decay a token, -exp(-0.5)


class Rwkv7TimeMix(Mixer):
    """The first layer's values (``v_first``) go to all layers beside the hidden states, row by row: none is kept."""

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(rwkv7.FAMILY, m.num_heads, m.head_dim, m.head_v_dim, channels=m.hidden_size, kernel=2)

    def forward(
        self, hidden_states: Tensor, *_: Any, v_first: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, None, None, Tensor]:
        """hidden_states: (1, N, hidden); v_first: (1, N, H * V), not looked at by the first layer."""
        m, x = self.original, hidden_states[0]
        delta = self.token_shift(x) - x
        r, w, k, v, a, g = (x + delta * share[0, 0] for share in (m.x_r, m.x_w, m.x_k, m.x_v, m.x_a, m.x_g))
        r, k, value = m.r_proj(r), m.k_proj(k), m.v_proj(v)
        log_decay = FASTEST * m.w_lora(w).float().sigmoid()
        if m.layer_idx == 0:
            v_first = value[None]
        else:
            assert v_first is not None
            value = torch.lerp(value, v_first[0], m.v_lora(v).sigmoid())
        rate = m.a_lora(a).sigmoid()
        removed = self.heads(k * m.k_k)
        removed = l2norm(removed) if m.fuse_norm else F.normalize(removed, dim=-1)
        k = k + k * (rate - 1) * m.k_a
        r, k, value, log_decay, rate = (self.heads(t) for t in (r, k, value, log_decay, rate))
        out = self.recurrent_scan(RecurrenceInputs(r, k, value, log_decay, a=-removed, b=removed * rate)).to(x.dtype)
        out = m.g_norm(out.flatten(1)) + ((r * k * m.r_k).sum(-1, keepdim=True) * value).flatten(1)
        return m.o_proj((out * m.g_lora(g)).to(x.dtype))[None], None, None, v_first

    def heads(self, x: Tensor) -> Tensor:
        """Split x into heads, (N, H, K or V) float32."""
        return x.view(len(x), self.layer.n_heads, -1).float()


class Rwkv7ChannelMix(Mixer):
    """The feed-forward layer, which reads the row before."""

    returns = 2

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(None, channels=m.hidden_size, kernel=2)

    def mix(self, m: Any, x: Tensor) -> Tensor:
        return m.value(m.act_fn(m.key(x + (self.token_shift(x) - x) * m.x_k)))  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    if model.config.attn is not None:
        raise UnsupportedModel(
            "this RWKV-7 has layers of full attention (attn in its configuration), which flash-linear-attention's own "
            "forward cannot run; use a model without them"
        )
    fla_mixer.swap(model, cache_spec, Rwkv7TimeMix)
    for block in model.model.layers:
        block.ffn = Rwkv7ChannelMix(block.ffn, cache_spec)
