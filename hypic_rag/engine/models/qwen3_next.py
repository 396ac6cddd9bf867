"""Qwen3-Next: as Qwen3.5, with query, key, value and gate interleaved by key head in one projection."""

from typing import Any

import torch
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models import qwen3_5
from hypic_rag.engine.models.qwen3_5 import GatedDeltaNet, Projected

MODEL_TYPES = ("qwen3_next",)


class Interleaved(GatedDeltaNet):
    def project(self, m: Any, x: Tensor) -> Projected:
        n, heads = x.shape[0], m.num_k_heads
        ratio = m.num_v_heads // heads
        widths = (m.head_k_dim, m.head_k_dim, ratio * m.head_v_dim, ratio * m.head_v_dim)
        q, k, v, z = m.in_proj_qkvz(x).view(n, heads, -1).split(widths, dim=-1)
        b, a = m.in_proj_ba(x).view(n, heads, -1).split((ratio, ratio), dim=-1)
        qkv = torch.cat([t.reshape(n, -1) for t in (q, k, v)], dim=-1)
        return Projected(qkv, z.reshape(n, -1), b.reshape(n, -1), a.reshape(n, -1))


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    qwen3_5.prepare(model, cache_spec, Interleaved)
