"""Which backend runs a model: torch, or a device's pools and kernels, and with how much memory."""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from hypic_rag.cache.codec import DEAD_NORM
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerShapes
from hypic_rag.config import format_bytes
from hypic_rag.engine.backends.base import Backend
from hypic_rag.engine.backends.torch import TorchBackend
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.device import fused_modules
from hypic_rag.engine.device.shapes import layer_shapes
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.moe import IMPLEMENTATION, synchronizes
from hypic_rag.engine.passes import prefill_kernels
from hypic_rag.engine.session_cache import SessionCache
from hypic_rag.errors import BadInput

LIVE_SHARE = 0.75
"""Of the transitions, for how many there is room."""
FREE_SHARE = 0.8
"""Of the memory that is free once the model is loaded: the rest is for activations and CUDA graphs."""
PREFILL_SHARE = 6
"""Of what the pools leave free, one part in so many for the entries of a prefill: those of two passes, their copies in
the order of the pools, and activations share it."""


def backend_for(
    model: Any, cache_spec: CacheSpec, conversations: SessionCache[Any], memory: int | None, graphs: bool
) -> Backend[Any]:
    """Return torch's on a CPU, and for models that the kernels do not know; else the device's.

    memory: bytes of the device for its pools (None: most of what is free; 0: none, and no kernels).
    """
    interpreted = memory is not None and os.environ.get("TRITON_INTERPRET") == "1"  # so tests ask for them on a CPU
    if memory == 0 or not (model.device.type == "cuda" or interpreted) or not has_kernels(cache_spec):
        return TorchBackend(model, cache_spec, conversations)
    from hypic_rag.engine.backends.device import DeviceBackend  # needs Triton, which a machine without a GPU may lack
    from hypic_rag.engine.device.model_runner import ModelRunner

    if memory is None:
        memory = int(FREE_SHARE * torch.cuda.mem_get_info(model.device)[0])
    is_half = model.dtype.itemsize == 2
    pool = _pool(memory, layer_shapes(cache_spec, model.dtype), model.device, LIVE_SHARE if is_half else 1.0)
    config = model.config.get_text_config()
    if getattr(config, "_experts_implementation", None):
        config._experts_implementation = IMPLEMENTATION
    if model.device.type == "cuda":
        fused_modules.swap(model)
        graphs = graphs and not synchronizes(model)
    # Its kernels solve in TF32 whatever they are given: good enough for 16 bits, a thousand times off for 32.
    linear = [layer for layer in cache_spec.layers if isinstance(layer, LinearLayer)]
    in_chunks = model.device.type == "cuda" and is_half and all(layer.in_chunks for layer in linear)
    in_chunks = in_chunks and prefill_kernels.is_there()
    prefill_bytes = torch.cuda.mem_get_info(model.device)[0] // PREFILL_SHARE if in_chunks else math.inf
    runner = ModelRunner(model, cache_spec, pool, graphs, in_chunks, DEAD_NORM if is_half else 0.0, prefill_bytes)
    return DeviceBackend(runner, conversations)


def _pool(memory: int, layers: Sequence[LayerShapes], device: torch.device, live_share: float) -> DevicePool:
    """Make the pools with room for many running sequences, or where ``memory`` (bytes) is small for fewer. Raises
    BadInput where it holds none, and where the device has less."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory
    if memory > free:
        raise BadInput(
            f"the device's pools were given {format_bytes(memory)}, and {format_bytes(free)} are free on {device} "
            "once the model is loaded. Give them less with --device-memory; auto takes most of what is free"
        )
    for n_sequences in (64, 16, 4):
        with suppress(BadInput):
            return DevicePool.within(memory, layers, device, n_sequences=n_sequences, live_share=live_share)
    return DevicePool.within(memory, layers, device, n_sequences=1, live_share=live_share)


def has_kernels(cache_spec: CacheSpec) -> bool:
    """Return whether kernels do what every layer of the model does.

    Not: RWKV's recurrences, states that turn with their keys, windows, latent attention, rotations that change with
    the length, one rotation of heads of several sizes.
    """
    heads: dict[int, int] = {}
    for layer in cache_spec.layers:
        if isinstance(layer, LinearLayer):
            if not layer.has_kernels:
                return False
        elif isinstance(layer, AttentionLayer):
            if layer.latent or layer.window is not None:
                return False
            if layer.rotary is not None and heads.setdefault(layer.rotary.index, layer.k_dim) != layer.k_dim:
                return False
    return cache_spec.switch_at is None and len(heads) == len(cache_spec.rotaries)  # of each the pass has turns
