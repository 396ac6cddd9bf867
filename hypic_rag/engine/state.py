"""What one sequence carries from pass to pass: running states, convolution tails, own keys and values."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hypic_rag.cache import Entry
from hypic_rag.cache.tiers.device import DeviceEntry
from hypic_rag.engine.sequence_slots import SequenceSlots
from hypic_rag.prompt import Part


@dataclass(frozen=True)
class CachedSegment:
    """A cached interior placed in a sequence.

    ``offset``: global position of the *segment's* first token, to which its keys' local positions are relative;
    ``position``: of the interior's first token. ``first_row``: how many own rows stand before it; the rows from there
    on see it.
    """

    offset: int
    position: int
    first_row: int
    n_tokens: int
    nbytes: int


@dataclass(frozen=True)
class TorchSegment(CachedSegment):
    """``layers[i]`` holds layer i's tensors where the model is, shared with every sequence that uses the entry."""

    layers: tuple[Mapping[str, Tensor], ...]


@dataclass(frozen=True)
class DeviceSegment(CachedSegment):
    """In a device's pools, at ``slot`` and from ``token_at`` on."""

    slot: int
    token_at: int


@dataclass
class LinearState:
    """R: (H, K, V) float32, None before the first row. tail: (k - 1, C), the last inputs of the causal convolution."""

    R: Tensor | None = None
    tail: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.R, self.tail) if t is not None)

    def clone(self) -> "LinearState":
        return LinearState(*(None if t is None else t.clone() for t in (self.R, self.tail)))


@dataclass
class KVCache:
    """Keys (rotated at global positions) and values of a sequence's own rows: (H, capacity, D), ``n`` in use.

    values: None where they are the first dims of the keys (MLA's latent).
    """

    keys: Tensor
    values: Tensor | None
    n: int = 0

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor | None, capacity: int) -> "KVCache":
        """Allocate room for ``capacity`` rows of the shapes of keys, values (H, n, D)."""

        def room(t: Tensor) -> Tensor:
            return t.new_empty(t.shape[0], capacity, t.shape[2])

        return cls(room(keys), None if values is None else room(values))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append rows. keys, values: (H, n, D). Grows by doubling where the capacity does not suffice."""
        end = self.n + keys.shape[1]
        if end > self.keys.shape[1]:
            grown = KVCache.empty(self.keys, self.values, max(end, 2 * self.keys.shape[1]))
            grown.append(self.keys[:, : self.n], self.values_of(values.shape[-1])[:, : self.n])
            self.keys, self.values = grown.keys, grown.values
        self.keys[:, self.n : end] = keys
        if self.values is not None:
            self.values[:, self.n : end] = values
        self.n = end

    def values_of(self, dim: int) -> Tensor:
        """Return the values (H, capacity, dim)."""
        return self.keys[..., :dim] if self.values is None else self.values

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + (0 if self.values is None else self.values.nbytes)

    def clone(self) -> "KVCache":
        return KVCache(self.keys.clone(), None if self.values is None else self.values.clone(), self.n)


@dataclass
class SequenceState(ABC):
    """``parts``: the token ids already run, consecutive live parts merged. ``position``: of the next token.

    ``row_positions``: of the rows computed for this sequence. ``segments``: placed in it, in order.
    """

    parts: list[Part] = field(default_factory=list, kw_only=True)
    position: int = field(default=0, kw_only=True)
    row_positions: list[int] = field(default_factory=list, kw_only=True)
    segments: list[Any] = field(default_factory=list, kw_only=True)

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def place(self, entry: Any, first_row: int) -> None:
        """Place an entry's interior behind its seam, the rows just before ``position``, and move that past it."""

    @abstractmethod
    def restarted(self) -> "SequenceState":
        """Return a state of the same parts of which nothing has run."""

    @abstractmethod
    def release(self) -> None:
        """Give back what it holds of what others share. A second time does nothing."""


@dataclass
class TorchSequence(SequenceState):
    """Tensors of its own. ``linear``, ``kv``: by the layer's slot. ``capacity``: own rows to make room for."""

    device: torch.device
    capacity: int = 64
    segments: list[TorchSegment] = field(default_factory=list, kw_only=True)
    linear: dict[int, LinearState] = field(default_factory=dict)
    kv: dict[int, KVCache] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        own = sum(s.nbytes for s in self.linear.values()) + sum(s.nbytes for s in self.kv.values())
        return own + sum(segment.nbytes for segment in self.segments)

    def place(self, entry: Entry, first_row: int) -> None:
        layers = tuple({name: t.to(self.device) for name, t in layer.tensors.items()} for layer in entry.layers)
        interior = entry.n_tokens - entry.seam_tokens
        offset = self.position - entry.seam_tokens
        self.segments.append(TorchSegment(offset, self.position, first_row, interior, entry.nbytes, layers))
        self.position += interior

    def restarted(self) -> "TorchSequence":
        return TorchSequence(self.device, self.capacity, parts=self.parts)

    def clone(self) -> "TorchSequence":
        """Return a copy that can go its own way; the segments, which nobody changes, are shared."""
        return replace(
            self,
            parts=list(self.parts),
            row_positions=list(self.row_positions),
            segments=list(self.segments),
            linear={i: s.clone() for i, s in self.linear.items()},
            kv={i: s.clone() for i, s in self.kv.items()},
        )

    def release(self) -> None:
        """Do nothing: nothing is shared."""


@dataclass
class DeviceSequence(SequenceState):
    """Slots in a device's pools."""

    slots: SequenceSlots
    segments: list[DeviceSegment] = field(default_factory=list, kw_only=True)

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    def place(self, entry: DeviceEntry, first_row: int) -> None:
        interior = entry.n_tokens - entry.seam_tokens
        offset = self.position - entry.seam_tokens
        self.segments.append(
            DeviceSegment(offset, self.position, first_row, interior, entry.nbytes, entry.slot, entry.token_at)
        )
        self.position += interior

    def restarted(self) -> "DeviceSequence":
        raise NotImplementedError("models whose rotation changes with the length run in torch (backends.choice)")

    def branch(self, slots: SequenceSlots) -> "DeviceSequence":
        """Return a copy that can go its own way, on a copy of the slots."""
        return replace(
            self,
            slots=slots,
            parts=list(self.parts),
            row_positions=list(self.row_positions),
            segments=list(self.segments),
        )

    def release(self) -> None:
        self.slots.release()
