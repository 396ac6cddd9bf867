"""What one sequence carries from pass to pass: running states, convolution tails, private keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hypic_rag.cache import Entry
from hypic_rag.cache.tiers.device import Resident
from hypic_rag.prompt import Part

if TYPE_CHECKING:
    from hypic_rag.engine.device.held import Held


@dataclass(frozen=True)
class Interior:
    """A cached interior placed in a sequence.

    ``layers[i]`` holds layer i's tensors on the compute device, shared with every sequence that uses the entry; none
    where they stand in a device's pools, at ``slot`` and from ``token_at`` on.
    ``offset``: global position of the *segment's* first token, to which its keys' local positions are relative;
    ``position``: of the interior's first token.
    ``first_row``: how many private rows stand before it; the rows from there on see it.
    """

    layers: tuple[Mapping[str, Tensor], ...]
    offset: int
    position: int
    first_row: int
    n_tokens: int
    nbytes: int
    slot: int = -1
    token_at: int = -1

    @classmethod
    def place(cls, entry: Entry | Resident, offset: int, first_row: int, device: torch.device) -> "Interior":
        first, n_tokens = offset + entry.seam_tokens, entry.n_tokens - entry.seam_tokens
        if isinstance(entry, Resident):
            return cls((), offset, first, first_row, n_tokens, entry.nbytes, entry.slot, entry.token_at)
        layers = tuple({name: t.to(device) for name, t in layer.tensors.items()} for layer in entry.layers)
        return cls(layers, offset, first, first_row, n_tokens, entry.nbytes)


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
class PrivateKV:
    """Keys (rotated at global positions) and values of a sequence's own rows: (H, capacity, D), ``n`` in use.

    values: None where they are the first dims of the keys (MLA's latent).
    """

    keys: Tensor
    values: Tensor | None
    n: int = 0

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor | None, capacity: int) -> "PrivateKV":
        """Room for ``capacity`` rows of the shapes of keys, values (H, n, D)."""

        def room(t: Tensor) -> Tensor:
            return t.new_empty(t.shape[0], capacity, t.shape[2])

        return cls(room(keys), None if values is None else room(values))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """keys, values: (H, n, D). Grows by doubling where the capacity does not suffice."""
        end = self.n + keys.shape[1]
        if end > self.keys.shape[1]:
            grown = PrivateKV.empty(self.keys, self.values, max(end, 2 * self.keys.shape[1]))
            grown.append(self.keys[:, : self.n], self.values_of(values.shape[-1])[:, : self.n])
            self.keys, self.values = grown.keys, grown.values
        self.keys[:, self.n : end] = keys
        if self.values is not None:
            self.values[:, self.n : end] = values
        self.n = end

    def values_of(self, dim: int) -> Tensor:
        """(H, capacity, dim)."""
        return self.keys[..., :dim] if self.values is None else self.values

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + (0 if self.values is None else self.values.nbytes)

    def clone(self) -> "PrivateKV":
        return PrivateKV(self.keys.clone(), None if self.values is None else self.values.clone(), self.n)


@dataclass
class SequenceState:
    """``parts``: the token ids already run, consecutive live parts merged. ``position``: of the next token.

    ``row_positions``: of the rows computed for this sequence. ``capacity``: own rows to make room for. ``held``: in
    place of ``linear`` and ``kv`` where they stand in a device's pools.
    """

    parts: list[Part] = field(default_factory=list)
    position: int = 0
    row_positions: list[int] = field(default_factory=list)
    capacity: int = 64
    interiors: list[Interior] = field(default_factory=list)
    linear: dict[int, LinearState] = field(default_factory=dict)
    kv: dict[int, PrivateKV] = field(default_factory=dict)
    held: "Held | None" = None

    @property
    def nbytes(self) -> int:
        if self.held is not None:
            return self.held.nbytes
        own = sum(s.nbytes for s in self.linear.values()) + sum(s.nbytes for s in self.kv.values())
        return own + sum(interior.nbytes for interior in self.interiors)

    def clone(self) -> "SequenceState":
        """A copy that can go its own way, without what it holds in pools; the interiors, which nobody changes, are
        shared."""
        return SequenceState(
            list(self.parts),
            self.position,
            list(self.row_positions),
            self.capacity,
            list(self.interiors),
            {i: s.clone() for i, s in self.linear.items()},
            {i: s.clone() for i, s in self.kv.items()},
        )

    def release(self) -> None:
        """Give back what it holds in a device's pools."""
        if self.held is not None:
            self.held.release()
            self.held = None
