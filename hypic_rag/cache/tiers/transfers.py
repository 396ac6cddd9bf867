"""When entries come into the slabs: queued, then copied together, layer by layer, while earlier layers compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hypic_rag.cache.entry import Entry
from hypic_rag.cache.tiers.copy_plan import CopyPlan, CopyPlanner
from hypic_rag.cache.tiers.device_tensors import DeviceTensors, PoolPlace

Copy = Callable[[Tensor, int, int], None]


@dataclass(frozen=True, eq=False)
class _Transfer:
    entry: Entry
    outline: CopyPlan
    place: PoolPlace


class Transfers:
    """Copies of entries into ``slabs``. ``stream``: where they are queued on a GPU; on a
    CPU ``flush`` makes them at once.

    A pass in a CUDA graph waits for a layer by a node that looks at the layer's event: no pass may be under way while
    events are recorded anew, and every event must have been recorded once, or there is no node.
    """

    def __init__(self, slabs: DeviceTensors):
        self._slabs, self.outlines = slabs, CopyPlanner(slabs)
        self._waiting: dict[int, _Transfer] = {}  # by slot
        self._under_way: list[Entry] = []  # being read
        self.stream: torch.cuda.Stream | None = None
        self._arrived: list[torch.cuda.Event] = []
        if slabs.device.type == "cuda":
            self.stream = torch.cuda.Stream(slabs.device, priority=-1)  # its few programs are placed first
            self._arrived = [torch.cuda.Event(external=True) for _ in slabs.layers]
            for event in self._arrived:
                event.record(self.stream)

    @property
    def waiting(self) -> set[int]:
        """Slots of entries that were added since the last flush."""
        return set(self._waiting)

    @property
    def bytes_on_device(self) -> int:
        """What such entries take of a GPU's memory: made there, and twice there until they have arrived."""
        if self.stream is None:
            return 0
        return sum(one.entry.nbytes for one in self._waiting.values() if one.outline.on_device)

    def add(self, entry: Entry, outline: CopyPlan, place: PoolPlace) -> None:
        """Queue an entry for a place that nobody else has; ``entry`` is kept until it has arrived."""
        assert place.slot not in self._waiting
        self._waiting[place.slot] = _Transfer(entry, outline, place)
        self._let_go()

    def drop(self, slot: int) -> None:
        """Drop what waits for this slot; whatever was on its way is there for the current stream."""
        self._waiting.pop(slot, None)
        self.wait()

    def clear(self) -> None:
        """Drop what waits, for every slot."""
        self._waiting = {}
        self.wait()

    def wait(self, layer: int | None = None) -> None:
        """Let the current stream wait for what ``flush`` brings of a layer; None: of all layers."""
        if self.stream is None:
            return
        current = torch.cuda.current_stream(self._slabs.device)
        if layer is not None:
            current.wait_event(self._arrived[layer])
        elif self._under_way:
            current.wait_stream(self.stream)

    def flush(self) -> None:
        """Queue the copies of all that waits. They begin when the current stream has nothing left to do, since it may
        still read what they overwrite."""
        self._let_go()
        if not self._waiting:
            return
        arrivals, self._waiting = list(self._waiting.values()), {}
        self._under_way += [arrival.entry for arrival in arrivals]
        if self.stream is None:
            from hypic_kernels.copies_reference import copy

            self._bring(arrivals, copy)
            return
        from hypic_kernels.copies import copy

        # See above; an engine has read what its last pass made, so that this returns at once.
        torch.cuda.current_stream(self._slabs.device).synchronize()
        with torch.cuda.stream(self.stream):
            self._bring(arrivals, copy)

    def _let_go(self) -> None:
        """Let go of entries that have arrived."""
        if self._under_way and (self.stream is None or self.stream.query()):
            self._under_way = []

    def _bring(self, arrivals: Sequence[_Transfer], copy: Copy) -> None:
        matrices = np.stack([arrival.outline.matrices(arrival.place.matrix) for arrival in arrivals], axis=1)
        if matrices.size:
            slots = np.array([arrival.place.slot for arrival in arrivals])
            self._slabs.set_transitions(self._sent(slots), self._sent(matrices))
        table, edges = _merged(arrivals)
        items = self._sent(table)
        for layer in range(len(self._slabs.layers)):
            copy(items, edges[layer], edges[layer + 1])
            for arrival in arrivals:
                for name in arrival.outline.others[layer]:
                    tensor = arrival.entry.layers[layer].tensors[name]
                    self._slabs.copy_in(tensor, layer, name, arrival.place, arrival.outline.live)
            if self.stream is not None:
                self._arrived[layer].record(self.stream)

    def _sent(self, array: np.ndarray) -> Tensor:
        """Send an array to the device, by way of pinned memory that torch gives to
        nobody else before it has been read."""
        tensor = torch.from_numpy(array)
        return tensor if self.stream is None else tensor.pin_memory().to(self._slabs.device, non_blocking=True)


def _merged(arrivals: Sequence[_Transfer]) -> tuple[np.ndarray, list[int]]:
    """Merge the items (3, n) of all, layer after layer; return them and the numbers of
    the layers' first ones (L + 1,)."""
    counts = np.stack([np.diff(arrival.outline.edges) for arrival in arrivals])  # (E, L)
    edges = np.append(0, counts.sum(0).cumsum())
    first = edges[:-1] + counts.cumsum(0) - counts  # (E, L)
    table = np.empty((3, edges[-1]), dtype=np.int64)
    for arrival, starts, n in zip(arrivals, first, counts, strict=True):
        outline = arrival.outline
        to = np.repeat(starts - outline.edges[:-1], n) + np.arange(outline.edges[-1])
        for row, values in zip(table, outline.items(arrival.place), strict=True):
            row[to] = values
    return table, edges.tolist()
