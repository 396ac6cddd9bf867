"""What the models of flash-linear-attention share: q, k and v behind short convolutions, and their full attention."""

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.models.mixer import Mixer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.rotary import Rotary

PACKAGE = "flash-linear-attention"
"""What registers these models with transformers when it is imported."""


class FlaMixer(Mixer):
    """The original returns its output, attention weights and cache."""

    returns = 3

    def convolution(self, m: Any) -> tuple[int, int]:
        """Return channels and kernel: three convolutions, one after another in the channels of one."""
        if not m.use_short_conv:
            return 0, 1
        weights = [conv.weight for conv in (m.q_conv1d, m.k_conv1d, m.v_conv1d)]
        return sum(len(weight) for weight in weights), weights[0].shape[-1]

    def activated(self, m: Any) -> tuple[bool, bool, bool]:
        """Return whether q, k and v go through SiLU."""
        return (m.use_short_conv,) * 3

    def qkv(self, m: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k: (N, heads, K); v: (N, heads, V); heads as the projections have them."""
        projected: tuple[Tensor, ...] = m.q_proj(x), m.k_proj(x), m.v_proj(x)
        activated = self.activated(m)
        at_once = m.use_short_conv and all(activated)
        if m.use_short_conv:
            convs = m.q_conv1d, m.k_conv1d, m.v_conv1d
            weight = torch.cat([conv.weight for conv in convs])
            bias = None if convs[0].bias is None else torch.cat([conv.bias for conv in convs])
            convolved = self.causal_conv1d(torch.cat(projected, dim=-1), weight, bias, silu=at_once)
            projected = torch.split(convolved, [t.shape[-1] for t in projected], dim=-1)
        q, k, v = (F.silu(t) if silu and not at_once else t for t, silu in zip(projected, activated, strict=True))
        n = len(x)
        return q.view(n, -1, m.head_k_dim), k.view(n, -1, m.head_k_dim), v.view(n, -1, m.head_v_dim)


class FullAttention(nn.Module):
    """Takes the place of a full-attention layer (``attn`` in the configuration), which calls flash-attn itself."""

    def __init__(self, original: Any, cache_spec: CacheSpec):
        super().__init__()
        self.original = original
        self.rotary = rotation(original.rotary, cache_spec)
        heads, dim = original.num_kv_heads, original.head_dim
        layer = AttentionLayer(heads, dim, dim, self.rotary, original.window_size)
        self.handle = AttentionHandle.take(layer, cache_spec)

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None, None]:
        """hidden_states: (1, N, hidden)."""
        m, x = self.original, hidden_states[0]
        q, k, v = (project(x).unflatten(-1, (-1, m.head_dim)) for project in (m.q_proj, m.k_proj, m.v_proj))
        if m.qk_norm:
            q, k = m.q_norm(q), m.k_norm(k)
        cos, sin = self.rotary.at(self.handle.current.running.positions)
        q, k = (self.rotary.turn(t.transpose(0, 1), cos, sin).to(x.dtype) for t in (q, k))
        out = self.handle.attend(q, k, v.transpose(0, 1), AttentionParams(m.head_dim**-0.5))
        return m.o_proj(out.transpose(0, 1).flatten(1))[None], None, None


def swap(model: Any, cache_spec: CacheSpec, mixer: type[Mixer]) -> None:
    """Replace the ``attn`` of every block."""
    for block in model.model.layers:
        is_full = hasattr(block.attn, "rope_theta")
        block.attn = FullAttention(block.attn, cache_spec) if is_full else mixer(block.attn, cache_spec)


def rotation(m: Any, cache_spec: CacheSpec) -> Rotary:
    """m: a rotary module; its frequencies in float32, as it computes them itself."""
    inv_freq = 1.0 / m.base ** (torch.arange(0, m.dim, 2, dtype=torch.float32) / m.dim)
    settings = json.dumps(["fla", m.base, m.dim, m.interleaved])
    return cache_spec.rotary(Rotary(inv_freq.double(), settings, interleaved=m.interleaved))
