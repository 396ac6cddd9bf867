"""Isolated prefill: many segments in one packed forward, each from a zero state, into cache entries."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.engine.context import Isolation
from hypic_rag.engine.device.chunked import DeviceIsolation
from hypic_rag.engine.device.patience import patience
from hypic_rag.engine.layout import Layout
from hypic_rag.engine.plan import Event, Mark, Rows, build
from hypic_rag.prompt import Ids

MAX_ROWS = 2048  # a pass
MAX_ROWS_ON_CPU = 512  # a larger product is no faster there, and answers under way wait for a pass to end
MAX_ROWS_IN_CHUNKS = 16384  # on a GPU: each pass reads the weights, and of a model of experts nearly all of them


def packs(sizes: Sequence[tuple[int, int]], max_rows: int, max_bytes: int | None = None) -> Iterator[list[int]]:
    """Group segments into passes of at most ``max_rows`` rows that make at most ``max_bytes`` of entries (None: any).
    One that is larger is a pass of its own. sizes: rows and bytes of each; their numbers are what is given."""
    pack: list[int] = []
    n_rows = n_bytes = 0
    for i, (rows, nbytes) in enumerate(sizes):
        if pack and (n_rows + rows > max_rows or (max_bytes is not None and n_bytes + nbytes > max_bytes)):
            yield pack
            pack, n_rows, n_bytes = [], 0, 0
        pack.append(i)
        n_rows, n_bytes = n_rows + rows, n_bytes + nbytes
    if pack:
        yield pack


@torch.inference_mode()
def prefill(
    model: Any,
    layout: Layout,
    segments: Sequence[Ids],
    seams: Sequence[int],
    prefixes: Sequence[Ids],
    in_chunks: bool = False,
) -> list[Entry]:
    """One packed pass. Each segment has more tokens than its seam. Entries are where the model is, interior only.

    prefixes: of each segment, what stands before it at negative positions. in_chunks: by ``device.chunked``.
    """
    sizes = [(len(prefix), seam, len(ids)) for prefix, seam, ids in zip(prefixes, seams, segments, strict=True)]
    positions = torch.cat([torch.arange(-before, n) for before, _, n in sizes]).to(model.device)
    context: Isolation | DeviceIsolation
    if in_chunks:
        context = DeviceIsolation.of(positions, [(before + seam, before + n) for before, seam, n in sizes])
    else:
        plan = build([_events(before + seam, n - seam) for before, seam, n in sizes], model.device)
        context = Isolation(plan, positions, tuple(before + seam for before, seam, _ in sizes))
    rows = [token for prefix, ids in zip(prefixes, segments, strict=True) for token in (*prefix, *ids)]
    ids = torch.tensor([rows], device=model.device)
    with patience() if in_chunks else nullcontext(), layout.current.during(context):
        model.base_model(input_ids=ids, position_ids=positions[None], use_cache=False)
    entries = []
    for s, (segment, seam) in enumerate(zip(segments, seams, strict=True)):
        layers = tuple(LayerEntry(layer.name, context.kept[i][s]) for i, layer in enumerate(layout.layers))
        entries.append(Entry(len(segment), seam, layers))
    return entries


def _events(dropped: int, interior: int) -> list[Event]:
    return [Rows(dropped), Mark(), Rows(interior)] if dropped else [Mark(), Rows(interior)]
