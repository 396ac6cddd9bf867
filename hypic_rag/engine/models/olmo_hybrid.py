"""OLMo Hybrid: Gated DeltaNet layers with write strengths up to two, every fourth one full attention."""

from typing import Any

import torch
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models import qwen3_5
from hypic_rag.engine.models.qwen3_5 import GatedDeltaNet, Projected

MODEL_TYPES = ("olmo_hybrid",)


class WritesUpToTwo(GatedDeltaNet):
    def project(self, m: Any, x: Tensor) -> Projected:
        qkv = torch.cat((m.q_proj(x), m.k_proj(x), m.v_proj(x)), dim=-1)
        return Projected(qkv, m.g_proj(x), m.b_proj(x), m.a_proj(x))

    def beta_scale(self, m: Any) -> float:
        return 2.0 if m.allow_neg_eigval else 1.0

    def output(self, m: Any, out: Tensor, z: Tensor, n: int) -> Tensor:
        return m.o_proj(m.o_norm(out, z).reshape(n, -1))  # type: ignore[no-any-return]


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    qwen3_5.prepare(model, cache_spec, WritesUpToTwo)
