"""Mamba-2 (also Codestral Mamba): Mamba-2 layers alone, no attention."""

from typing import Any

from hypic_rag.engine.layout import Layout
from hypic_rag.engine.models.mamba2_mixer import Mamba2

MODEL_TYPES = ("mamba2",)


def prepare(model: Any, layout: Layout) -> None:
    for layer in model.backbone.layers:
        layer.mixer = Mamba2(layer.mixer, layout)
