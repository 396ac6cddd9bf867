"""The layout of one forward pass: which rows belong to whom, built apart from its execution.

A pass holds the rows of several sequences one behind the other. Each sequence is a list of events in order:
``RunRows`` that are computed, ``Splice`` (a cached interior stands here) and ``Mark`` (note the state here; a
segment's transition begins). The plan turns the events into integer tensors that every layer reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class RunRows:
    """``n`` computed rows."""

    n: int


@dataclass(frozen=True)
class Splice:
    """The ``index``-th cached interior of the sequence, counted over all its passes."""

    index: int


@dataclass(frozen=True)
class Mark:
    """End of the seam in an isolated prefill: what follows is the interior."""


Event = RunRows | Splice | Mark


@dataclass(frozen=True)
class Stretch:
    """RunRows of one sequence with no cached interior between them: ``start``, ``n`` count rows of the pass.

    The convolution reaches back to ``before``: a cached interior's tail, or (None) the sequence's own.
    """

    sequence: int
    start: int
    n: int
    before: int | None


@dataclass(frozen=True)
class Steps:
    """The recurrence's walk over a plan, in chunks of C rows.

    At step i the first ``active[i]`` sequences of ``order`` take one chunk each, their chunks lie one behind the
    other, and ``before[i]`` lists what happens first, as (place in ``order``, Splice or Mark). ``chunk_rows``:
    (n_chunks, C) int64, ``n_rows`` pads. ``gather``: (n_rows,) int64, where a row's output lies in the flattened
    chunks.
    """

    order: tuple[int, ...]
    active: tuple[int, ...]
    before: tuple[tuple[tuple[int, Splice | Mark], ...], ...]
    chunk_rows: Tensor
    gather: Tensor


@dataclass(frozen=True)
class Plan:
    """n_rows rows in all; ``spans[s]`` are the rows (start, stop) of sequence s; ``stretches`` in row order.

    ``last_splice[s]`` ends sequence s, where rows do not.
    """

    sequences: tuple[tuple[Event, ...], ...]
    n_rows: int
    spans: tuple[tuple[int, int], ...]
    stretches: tuple[Stretch, ...]
    last_splice: tuple[int | None, ...]
    device: torch.device
    _steps: dict[int, Steps] = field(default_factory=dict)

    def steps(self, max_chunk: int) -> Steps:
        """Cut the rows into chunks of at most ``max_chunk``; made once for all layers that ask for the same."""
        size = self.chunk_size(max_chunk)
        if size not in self._steps:
            self._steps[size] = _walk(self, size)
        return self._steps[size]

    def chunk_size(self, max_chunk: int) -> int:
        """Choose the rows of a chunk, for the least work: short seams in long chunks would be mostly padding, and every
        chunk costs a step of the recurrence, about as much as 8 rows. One row a run needs no chunk at all."""
        runs = [event.n for events in self.sequences for event in events if isinstance(event, RunRows)]
        if max(runs, default=1) == 1:
            return 1
        sizes = [size for size in (8, 16, 32, 64) if size <= max_chunk]
        return min(sizes, key=lambda size: sum(-(-n // size) for n in runs) * (size + 8))


def build(sequences: Sequence[Sequence[Event]], device: torch.device | str = "cpu") -> Plan:
    """Lay out one pass. Each sequence has at least one row."""
    row, spans, last = 0, [], []
    stretches: list[Stretch] = []
    for s, events in enumerate(sequences):
        first, opened, before = row, None, None
        for event in events:
            if isinstance(event, RunRows):
                if opened is None:
                    opened = len(stretches)
                    stretches.append(Stretch(s, row, 0, before))
                previous = stretches[opened]
                stretches[opened] = Stretch(s, previous.start, previous.n + event.n, previous.before)
                row += event.n
            elif isinstance(event, Splice):
                opened, before = None, event.index
        spans.append((first, row))
        last.append(before if opened is None else None)
    events_of = tuple(tuple(events) for events in sequences)
    return Plan(events_of, row, tuple(spans), tuple(stretches), tuple(last), torch.device(device))


def _walk(plan: Plan, size: int) -> Steps:
    chunked = []
    for events, (row, _) in zip(plan.sequences, plan.spans, strict=True):
        chunks: list[list[int]] = []
        waiting: list[tuple[int, Splice | Mark]] = []  # (chunk it precedes, event)
        for event in events:
            if isinstance(event, RunRows):
                chunks += [list(range(row + i, row + min(i + size, event.n))) for i in range(0, event.n, size)]
                row += event.n
            else:
                waiting.append((len(chunks), event))
        chunked.append((chunks, waiting))
    order = sorted(range(len(chunked)), key=lambda s: -len(chunked[s][0]))  # stable: equal lengths keep their order
    n_steps = len(chunked[order[0]][0]) if order else 0
    active, table = [], []
    for step in range(n_steps):
        these = [s for s in order if len(chunked[s][0]) > step]
        active.append(len(these))
        table += [chunked[s][0][step] for s in these]
    events_before = tuple(
        tuple((place, event) for place, s in enumerate(order) for at, event in chunked[s][1] if at == step)
        for step in range(n_steps + 1)
    )
    chunk_rows = torch.full((len(table), size), plan.n_rows, dtype=torch.long)
    gather = torch.empty(plan.n_rows, dtype=torch.long)
    for i, rows in enumerate(table):
        chunk_rows[i, : len(rows)] = torch.tensor(rows)
        gather[rows[0] : rows[-1] + 1] = torch.arange(i * size, i * size + len(rows))
    device = plan.device
    return Steps(tuple(order), tuple(active), events_before, chunk_rows.to(device), gather.to(device))
