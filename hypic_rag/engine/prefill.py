"""Isolated prefill: many segments in one packed forward, each from a zero state, into cache entries."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.passes.base import Pass
from hypic_rag.engine.passes.torch_isolation import Kept, TorchIsolation
from hypic_rag.prompt import Ids

MAX_ROWS = 2048  # a pass
MAX_ROWS_ON_CPU = 512  # a larger product is no faster there, and answers under way wait for a pass to end


class IsolatedPass(Pass, Protocol):
    """A pass of segments that keeps what their interiors leave."""

    @property
    def kept(self) -> Kept: ...


@dataclass(frozen=True)
class PrefillPasses:
    """How isolated segments are run.

    isolate: makes the pass of these positions and, of each segment, its rows dropped and all its rows. max_rows: a
    pass. max_bytes: of entries made in a pass. around: stands around each pass.
    """

    isolate: Callable[[Tensor, Sequence[tuple[int, int]]], IsolatedPass]
    max_rows: int
    max_bytes: float = math.inf
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    @classmethod
    def in_torch(cls, device: torch.device) -> "PrefillPasses":
        return cls(TorchIsolation.of, MAX_ROWS_ON_CPU if device.type == "cpu" else MAX_ROWS)


@torch.inference_mode()
def prefill(
    model: Any,
    cache_spec: CacheSpec,
    segments: Sequence[Ids],
    seams: Sequence[int],
    prefixes: Sequence[Ids],
    passes: PrefillPasses,
) -> list[Entry]:
    """Run the segments in one packed pass. Each has more tokens than its seam. Entries are
    where the model is, interior only.

    prefixes: of each segment, what stands before it at negative positions.
    """
    sizes = [(len(prefix), seam, len(ids)) for prefix, seam, ids in zip(prefixes, seams, segments, strict=True)]
    positions = torch.cat([torch.arange(-before, n) for before, _, n in sizes]).to(model.device)
    isolated = passes.isolate(positions, [(before + seam, before + n) for before, seam, n in sizes])
    rows = [token for prefix, ids in zip(prefixes, segments, strict=True) for token in (*prefix, *ids)]
    ids = torch.tensor([rows], device=model.device)
    with passes.around(), cache_spec.current.during(isolated):
        model.base_model(input_ids=ids, position_ids=positions[None], use_cache=False)
    entries = []
    for s, (segment, seam) in enumerate(zip(segments, seams, strict=True)):
        layers = tuple(LayerEntry(layer.name, isolated.kept[i][s]) for i, layer in enumerate(cache_spec.layers))
        entries.append(Entry(len(segment), seam, layers))
    return entries
