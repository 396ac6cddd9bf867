"""From the sequences of a pass to the integers that its kernels read."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from hypic_kernels.attention_plan import SequenceRows, write_plan
from hypic_kernels.chunked_scan import CHUNK

from hypic_rag.engine.assemble import ScheduledSequence
from hypic_rag.engine.device.graph_bucket import BucketSizes, GraphBucket, split_of
from hypic_rag.engine.plan import RunRows, Splice
from hypic_rag.engine.rotary import Rotary
from hypic_rag.engine.state import DeviceSegment, DeviceSequence

Scheduled = ScheduledSequence[DeviceSequence]
COMPOSE = {"exact": 0, "last_state": 1, "add": 2}


def sizes_of(batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> BucketSizes:
    rows = [len(active.ids) for active in batch]
    split = split_of(max(rows))
    pieces = []
    for active in batch:
        own = len(active.state.row_positions) + len(active.ids)
        pieces.append(sum(-(-n // split) for n in (own, *(one.n_tokens for one in active.state.segments))))
    return BucketSizes(
        rows=sum(rows),
        sequences=len(batch),
        runs=sum(_n_runs(active) for active in batch),
        pieces=sum(pieces),
        partial_rows=sum(n * m for n, m in zip(rows, pieces, strict=True)),
        turns=sum(len(active.state.segments) for active in batch) or 1,
        kept=sum(len(wanted) for wanted in keep) or 1,
        widest=max(rows),
        is_spliced=any(isinstance(event, Splice) for active in batch for event in active.events),
    )


def _n_runs(active: Scheduled) -> int:
    """Count the runs of the recurrence that ``_runs`` makes: rows in chunks, of which the
    last takes the splice behind them."""
    n = rows = 0
    for event in active.events:
        if isinstance(event, RunRows):
            rows += event.n
        elif isinstance(event, Splice):
            n, rows = n + max(1, -(-rows // CHUNK)), 0
    return n + -(-rows // CHUNK)


def fill(
    bucket: GraphBucket, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]], rotaries: Sequence[Rotary]
) -> None:
    """Fill everything of the bucket, its padding too; nothing is sent yet."""
    host = bucket.host
    n_rows = bucket.sizes.rows
    host["reach"].fill(0)
    host["back"].fill(-1)
    for name in ("tail_to", "state_from", "state_to"):
        host[name].fill(-1)
    for name in ("end", "run_n", "ids", "positions", "kept"):
        host[name].fill(0)
    row = run = turn = n_kept = 0
    described = []
    for m, (active, wanted) in enumerate(zip(batch, keep, strict=True)):
        state, n = active.state, len(active.ids)
        slots = state.slots
        first, past = row, len(state.row_positions)
        host["ids"][row : row + n] = active.ids
        host["positions"][row : row + n] = active.positions
        host["kept"][n_kept : n_kept + len(wanted)] = [first + i for i in wanted]
        n_kept += len(wanted)
        host["first_run"][m] = run
        before = -1 if slots.is_fresh else slots.slot
        stretch = opened = row
        for event in active.events:
            if isinstance(event, RunRows):
                host["reach"][row : row + event.n] = np.arange(row - stretch, row - stretch + event.n)
                host["back"][row : row + event.n] = before
                row += event.n
            elif isinstance(event, Splice):
                interior = state.segments[event.index]
                before = interior.slot
                run = _runs(bucket, run, opened, row, interior, COMPOSE[active.compose])
                stretch = opened = row
        if row > opened:
            run = _runs(bucket, run, opened, row, None, 0)
        host["reach"][n_rows + m], host["back"][n_rows + m] = row - stretch, before
        host["end"][m] = row
        host["state_from"][m] = -1 if slots.is_fresh else slots.slot
        host["tail_to"][m] = host["state_to"][m] = slots.next_slot
        interiors = [(one.first_row, one.token_at, one.n_tokens, turn + i) for i, one in enumerate(state.segments)]
        described.append(SequenceRows(first, row, past, slots.token_at, interiors))
        turn += len(state.segments)
    host["first_run"][len(batch) :] = run
    write_plan(host["attention"], described, bucket.sizes.attention)
    offsets = [interior.offset for active in batch for interior in active.state.segments]
    if offsets and offsets != bucket.turned:
        for r, rotary in enumerate(rotaries):
            _turns(host[f"cos{r}"], host[f"sin{r}"], rotary, offsets)
        bucket.turned = offsets


def _runs(bucket: GraphBucket, run: int, start: int, stop: int, interior: DeviceSegment | None, compose: int) -> int:
    """Lay rows ``start`` to ``stop`` in runs from number ``run`` on, the last with the
    splice. Return the next number."""
    host = bucket.host
    spliced = (-1, 0, 0) if interior is None else (interior.slot, interior.n_tokens, compose)
    edges = [*range(start, stop, CHUNK), stop] if stop > start else [start, stop]
    for first, last in pairwise(edges):
        host["run_row"][run], host["run_n"][run] = first, last - first
        here = spliced if last == stop else (-1, 0, 0)
        host["run_slot"][run], host["run_tokens"][run], host["run_compose"][run] = here
        run += 1
    return run


def partner(rotary: Rotary, dim: int) -> np.ndarray:
    """Return with which dim of a head each is mixed by the rotation, (dim,) int32."""
    at = np.arange(dim, dtype=np.int32)
    n = 2 * len(rotary.inv_freq)
    rotated = at[rotary.first : rotary.first + n]
    if rotary.interleaved:
        at[rotary.first : rotary.first + n] = rotated.reshape(-1, 2)[:, ::-1].reshape(-1)
    else:
        at[rotary.first : rotary.first + n] = np.roll(rotated, n // 2)
    return at


def _turns(cos: np.ndarray, sin: np.ndarray, rotary: Rotary, offsets: list[int]) -> None:
    """Write ``Rotary.turns`` for whole heads into cos, sin (n, D): 1 and 0 where nothing turns."""
    n = len(offsets)
    cos[:n], sin[:n] = 1, 0
    turned = rotary.turns(offsets, torch.device("cpu"))
    rotated = slice(rotary.first, rotary.first + turned[0].shape[1])
    cos[:n, rotated], sin[:n, rotated] = (table.numpy() for table in turned)
