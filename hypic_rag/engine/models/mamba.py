"""Mamba and Falcon-Mamba: Mamba-1 layers alone, no attention."""

from typing import Any

from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.models.jamba import Mamba1

MODEL_TYPES = ("falcon_mamba", "mamba")


class MambaMixer(Mamba1):
    def normed(self, m: Any, dt: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return dt, B, C


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    mixer = MambaMixer if model.config.model_type == "mamba" else Mamba1
    for layer in model.backbone.layers:
        layer.mixer = mixer(layer.mixer, cache_spec)
