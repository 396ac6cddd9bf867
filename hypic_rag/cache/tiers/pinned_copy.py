"""Copies of entries in the host's memory: in an arena, in the layout that a GPU copies from."""

from dataclasses import replace

import torch
from torch import Tensor

from hypic_rag.cache.entry import PER_TOKEN, Entry, LayerEntry
from hypic_rag.cache.tiers.arena import ALIGN, Arena


@torch.no_grad()
def host_copy(entry: Entry, arena: Arena | None) -> Entry:
    """Copy the entry to memory of its own on the CPU, shared with nobody.

    In an arena its tensors stand in one stretch, layer after layer, each from a multiple of ALIGN bytes on: dense, and
    what is kept a token token-major, so that ``t.transpose(0, 1)`` is contiguous, as a device's pools have it; and
    ``transition_norms`` are known. Without one each tensor is contiguous in memory of its own.

    From a GPU copies are queued on the current stream, where the entry must be ready, and waited for.
    """
    if arena is None:
        return _with_tensors(entry, [_own(t) for t in _tensors(entry)])
    places, end = [], 0
    for tensor in _tensors(entry):
        places.append(end)
        end += -(-tensor.nbytes // ALIGN) * ALIGN
    stretch = arena.take(end)
    copies = []
    for at, (name, tensor) in zip(places, _named(entry), strict=True):
        source, is_turned = tensor, name in PER_TOKEN and tensor.dim() == 3
        if is_turned:
            source = source.transpose(0, 1)
        if source.is_cuda:
            source = source.contiguous()  # turned there: else the copy would be by way of memory that is not locked
        copy = stretch[at : at + source.nbytes].view(source.dtype).view(source.shape)
        copy.copy_(source, non_blocking=True)
        copies.append(copy.transpose(0, 1) if is_turned else copy)
    copied = _with_tensors(entry, copies)
    vars(copied)["transition_norms"] = entry.transition_norms  # read where the entry lies: on a GPU in no time
    for device in {t.device for t in _tensors(entry) if t.is_cuda}:
        done = torch.cuda.Event(blocking=True)
        done.record(torch.cuda.current_stream(device))
        done.synchronize()
    return copied


def on_device(entry: Entry, device: torch.device | None) -> Entry:
    """Bring the entry to a device, on the current stream; None: leave it where it is. It need not be
    kept until the copies have run."""
    if device is None:
        return entry
    moved = _with_tensors(entry, [t.to(device, non_blocking=True) for t in _tensors(entry)])
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return moved


def _own(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


def _named(entry: Entry) -> list[tuple[str, Tensor]]:
    return [pair for layer in entry.layers for pair in layer.tensors.items()]


def _tensors(entry: Entry) -> list[Tensor]:
    return [tensor for _, tensor in _named(entry)]


def _with_tensors(entry: Entry, tensors: list[Tensor]) -> Entry:
    """Return the same with other tensors, given in the order of ``_tensors``."""
    left = iter(tensors)
    layers = tuple(LayerEntry(layer.family, {name: next(left) for name in layer.tensors}) for layer in entry.layers)
    return replace(entry, layers=layers)
