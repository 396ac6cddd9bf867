"""What the device's pools must hold of each layer of a model."""

import torch

from hypic_rag.cache.tiers.device_tensors import LayerShapes
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import FLOAT32, AttentionLayer, Layer


def layer_shapes(cache_spec: CacheSpec, dtype: torch.dtype) -> list[LayerShapes]:
    """Return the shapes of each layer's entries. dtype: the model's; states and
    transitions are float32 whatever it is."""
    return [_shapes(layer, dtype) for layer in cache_spec.layers]


def _shapes(layer: Layer, dtype: torch.dtype) -> LayerShapes:
    kept = {
        name: (shape, torch.float32 if name in FLOAT32 else dtype) for name, shape in layer.shapes(n_tokens=1).items()
    }
    if isinstance(layer, AttentionLayer):
        return LayerShapes(tokens={name: ((H, D), of) for name, ((H, _, D), of) in kept.items()})
    if layer.family is None or layer.family.transition.form != "dense":
        return LayerShapes(slots=kept)
    del kept["T"]
    return LayerShapes(slots=kept, matrices=(layer.n_heads, layer.k_dim))
