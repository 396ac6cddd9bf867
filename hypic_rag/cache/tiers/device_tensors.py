"""The device's memory for entries and running sequences: how it is laid out, and copies into and out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Tensors = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class LayerShapes:
    """What one layer keeps of a segment; shapes and types by the names that tensors have in an entry.

    slots: of fixed size, such as S (H, K, V) float32 and the tail (k - 1, C).
    matrices: (H, K) where T is dense, (H, K, K) float32, of which only live heads are kept; not among ``slots``.
    tokens: (H, D) of what is kept a token; an entry has them as (H, n, D).
    """

    slots: Tensors = field(default_factory=dict)
    matrices: tuple[int, int] | None = None
    tokens: Tensors = field(default_factory=dict)

    def of_entry(self, n_tokens: int) -> Tensors:
        """Return what an entry has whose interior is ``n_tokens`` long."""
        found = dict(self.slots)
        if self.matrices is not None:
            n_heads, k_dim = self.matrices
            found["T"] = (n_heads, k_dim, k_dim), torch.float32
        return found | {name: ((H, n_tokens, D), dtype) for name, ((H, D), dtype) in self.tokens.items()}


@dataclass(frozen=True, eq=False)
class LayerPools:
    """A layer's tensors: what the kernels read, by slot and by token slot.

    slots: (n_slots, ...). tokens: (n_tokens, H, D). matrices: (n_matrices, K, K) float32, one memory for all layers;
    T_at: (n_slots, H) int32, which of them a slot's head has, -1 where its T is dead. Both None where T is not dense.
    """

    slots: Mapping[str, Tensor]
    tokens: Mapping[str, Tensor]
    matrices: Tensor | None
    T_at: Tensor | None


class PoolPlace(NamedTuple):
    """Where an entry lies: its slot, its first token slot, its first matrix."""

    slot: int
    token: int
    matrix: int


@dataclass(frozen=True)
class UnitBytes:
    """Bytes that a slot, a token slot and a matrix take, over all layers."""

    slot: int
    token: int
    matrix: int

    def of(self, n_slots: int, n_tokens: int, n_matrices: int) -> int:
        return n_slots * self.slot + n_tokens * self.token + n_matrices * self.matrix


def dense(layers: Sequence[LayerShapes]) -> tuple[int, int, int]:
    """Count the layers with a dense T, and return the (H, K) that they share; zeros where there are none."""
    found = [layer.matrices for layer in layers if layer.matrices is not None]
    if len(set(found)) > 1:
        raise ValueError(
            f"dense transitions are of {sorted(set(found))} heads and dims; a pool holds those of one size"
        )
    return (len(found), *found[0]) if found else (0, 0, 0)


def unit_bytes(layers: Sequence[LayerShapes]) -> UnitBytes:
    n_dense, n_heads, k_dim = dense(layers)
    slots, tokens = (
        sum(torch.Size(shape).numel() * dtype.itemsize for tensors in kind for shape, dtype in tensors.values())
        for kind in ([layer.slots for layer in layers], [layer.tokens for layer in layers])
    )
    return UnitBytes(slots + n_dense * n_heads * 4, tokens, k_dim * k_dim * 4)


class DeviceTensors:
    """All layers' tensors. ``layers[i]``: of layer i. ``heads``: how many layers have a dense T, and of how many heads.
    Nothing is zeroed, ``T_at`` aside."""

    def __init__(
        self, layers: Sequence[LayerShapes], device: torch.device, n_slots: int, n_tokens: int, n_matrices: int
    ):
        self.shapes = tuple(layers)
        n_dense, n_heads, k_dim = dense(layers)
        self.heads = n_dense, n_heads
        self._T_at = torch.full((n_dense, n_slots, n_heads), -1, dtype=torch.int32, device=device)
        self._matrices = torch.empty(n_matrices, k_dim, k_dim, dtype=torch.float32, device=device)
        self.device = self._T_at.device
        rows_of_T_at = iter(self._T_at)

        def room(n: int, tensors: Tensors) -> dict[str, Tensor]:
            return {name: torch.empty(n, *s, dtype=dtype, device=device) for name, (s, dtype) in tensors.items()}

        self.layers = tuple(
            LayerPools(
                room(n_slots, layer.slots),
                room(n_tokens, layer.tokens),
                *((None, None) if layer.matrices is None else (self._matrices, next(rows_of_T_at))),
            )
            for layer in layers
        )

    @cached_property
    def nbytes(self) -> int:
        tensors = [t for layer in self.layers for t in (*layer.slots.values(), *layer.tokens.values())]
        return sum(t.nbytes for t in (*tensors, self._matrices, self._T_at))

    def set_transitions(self, slots: Tensor, numbers: Tensor) -> None:
        """Set which matrices are the T of the slots' heads. slots: (E,) int64. numbers: (n_dense, E, H) int32, their
        rows of every ``T_at``. Both on the device."""
        self._T_at.index_copy_(1, slots, numbers)

    def copy_in(self, tensor: Tensor, layer: int, name: str, place: PoolPlace, live: np.ndarray) -> None:
        """Copy an entry's tensor in, from wherever and however it lies, on the current stream.

        live: (n_dense, H) bool, the heads whose T has a matrix; they have them in a row.
        """
        pools = self.layers[layer]
        if name in pools.slots:
            pools.slots[name][place.slot].copy_(tensor, non_blocking=True)
        elif name in pools.tokens:
            # brought over as it lies and turned there: a copy between devices turns on the host, unpinned
            brought = tensor.to(self.device, non_blocking=True)
            pools.tokens[name][place.token : place.token + brought.shape[1]].copy_(brought.transpose(0, 1))
        else:
            number = sum(shapes.matrices is not None for shapes in self.shapes[:layer])
            at = place.matrix + int(live[:number].sum())
            for start, stop in runs(live[number].tolist()):
                self._matrices[at : at + stop - start].copy_(tensor[start:stop], non_blocking=True)
                at += stop - start

    def read(self, slot: int, token_at: int, n_tokens: int) -> tuple[dict[str, Tensor], ...]:
        """Return each layer's tensors in an entry's shapes: views, but for a dense T,
        which is gathered, dead heads zero."""
        return tuple(
            {name: t[slot] for name, t in pools.slots.items()}
            | {name: t[token_at : token_at + n_tokens].transpose(0, 1) for name, t in pools.tokens.items()}
            | ({} if pools.T_at is None else {"T": self._gathered(pools.T_at[slot])})
            for pools in self.layers
        )

    def _gathered(self, T_at: Tensor) -> Tensor:
        """T_at: (H,). Returns (H, K, K)."""
        is_dead = (T_at < 0)[:, None, None]
        return self._matrices[T_at.clamp(min=0)].masked_fill(is_dead, 0)

    def copy_state(self, source: int, to: int) -> None:
        """Copy all of a slot's tensors; matrices are not a slot's."""
        for layer in self.layers:
            for t in layer.slots.values():
                t[to].copy_(t[source])

    def copy_tokens(self, source: int, to: int, n: int) -> None:
        for layer in self.layers:
            for t in layer.tokens.values():
                t[to : to + n].copy_(t[source : source + n])


def runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Find the longest stretches that are all true, as (start, stop)."""
    edges = [i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))
