"""Falcon-H1: every layer has full attention and a Mamba-2 mixer side by side, scaled by fixed multipliers."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("falcon_h1",)


class ScaledMamba2(Mamba2):
    def project(self, m: Any, x: Tensor) -> Tensor:
        projected = m.in_proj(x * m.ssm_in_multiplier) * m.mup_vector[0]
        return projected.to(x.dtype)  # type: ignore[no-any-return]

    def gated(self, m: Any, out: Tensor, gate: Tensor) -> Tensor:
        return super().gated(m, out, gate) if m.mamba_rms_norm else out * F.silu(gate)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    rotary = cache_spec.rotation(model.model.rotary_emb, config)
    for layer in model.model.layers:
        layer.mamba = ScaledMamba2(layer.mamba, cache_spec)
        AttentionHandle.give(layer.self_attn, config, cache_spec, rotary)
