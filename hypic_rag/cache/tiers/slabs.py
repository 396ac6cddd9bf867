"""The device's memory for entries and running sequences: how it is laid out, and copies into and out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hypic_rag.cache.entry import Entry

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
        """What an entry has whose interior is ``n_tokens`` long."""
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


@dataclass(frozen=True)
class UnitBytes:
    """Bytes that a slot, a token slot and a matrix take, over all layers."""

    slot: int
    token: int
    matrix: int

    def of(self, n_slots: int, n_tokens: int, n_matrices: int) -> int:
        return n_slots * self.slot + n_tokens * self.token + n_matrices * self.matrix


def dense(layers: Sequence[LayerShapes]) -> tuple[int, int, int]:
    """How many layers have a dense T, and the (H, K) that they share; zeros where there are none."""
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


class Slabs:
    """All layers' tensors. ``layers[i]``: of layer i. Nothing is zeroed, ``T_at`` aside."""

    def __init__(
        self, layers: Sequence[LayerShapes], device: torch.device, n_slots: int, n_tokens: int, n_matrices: int
    ):
        self.shapes, self.device = tuple(layers), device
        n_dense, n_heads, k_dim = dense(layers)
        self._T_at = torch.full((n_dense, n_slots, n_heads), -1, dtype=torch.int32, device=device)
        self._matrices = torch.empty(n_matrices, k_dim, k_dim, dtype=torch.float32, device=device)
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

    @property
    def nbytes(self) -> int:
        tensors = [t for layer in self.layers for t in (*layer.slots.values(), *layer.tokens.values())]
        return sum(t.nbytes for t in (*tensors, self._matrices, self._T_at))

    def live(self, entry: Entry, dead_below: float) -> Tensor:
        """(n_dense, H) bool on the CPU: whether a head's T has a Frobenius norm of at least ``dead_below``."""
        Ts = [e.tensors["T"] for e, shapes in zip(entry.layers, self.shapes, strict=True) if shapes.matrices]
        if not Ts or dead_below <= 0:
            return torch.ones(self._T_at.shape[0], self._T_at.shape[2], dtype=torch.bool)
        dead = torch.stack([torch.linalg.vector_norm(T, dim=(1, 2)) < dead_below for T in Ts])
        return ~dead.cpu()

    def require_fit(self, entry: Entry) -> None:
        """Raises ValueError where copies would be of other shapes or types than the slabs (and be made to fit)."""
        if len(entry.layers) != len(self.shapes):
            raise ValueError(f"the entry has {len(entry.layers)} layers, the pool {len(self.shapes)}")
        for i, (layer, shapes) in enumerate(zip(entry.layers, self.shapes, strict=True)):
            found = {name: (tuple(t.shape), t.dtype) for name, t in layer.tensors.items()}
            wanted = dict(shapes.of_entry(entry.n_tokens - entry.seam_tokens))
            if found != wanted:
                raise ValueError(f"layer {i} of the entry has {found}, but the pool was made for {wanted}")

    def write(
        self, entry: Entry, slot: int, token_at: int, matrix_at: int, live: Tensor, stream: torch.cuda.Stream | None
    ) -> torch.cuda.Event | None:
        """Copy an entry's tensors in, a copy each (of T one a run of live heads), from pinned memory without waiting.

        The copies wait for what was queued before, which may still read what they overwrite. stream: where they are
        queued, None for the current one. Returns an event behind the last, on a CPU None.
        """
        if self.device.type != "cuda":
            self._write(entry, slot, token_at, matrix_at, live)
            return None
        current = torch.cuda.current_stream(self.device)
        stream = stream or current
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._write(entry, slot, token_at, matrix_at, live)
            ready: torch.cuda.Event = stream.record_event()
            return ready

    def _write(self, entry: Entry, slot: int, token_at: int, matrix_at: int, live: Tensor) -> None:
        numbers = torch.where(live, matrix_at + live.flatten().cumsum(0).view_as(live) - 1, -1).int()
        if self.device.type == "cuda" and numbers.numel():
            numbers = numbers.pin_memory()
        self._T_at[:, slot].copy_(numbers, non_blocking=True)
        live_of = iter(live.tolist())
        for pools, layer, shapes in zip(self.layers, entry.layers, self.shapes, strict=True):
            for name in shapes.slots:
                pools.slots[name][slot].copy_(layer.tensors[name], non_blocking=True)
            for name in shapes.tokens:
                # brought over as it lies and turned there: a copy between devices turns on the host, unpinned
                brought = layer.tensors[name].to(self.device, non_blocking=True)
                pools.tokens[name][token_at : token_at + brought.shape[1]].copy_(brought.transpose(0, 1))
            if shapes.matrices is not None:
                for start, stop in runs(next(live_of)):
                    to = self._matrices[matrix_at : matrix_at + stop - start]
                    to.copy_(layer.tensors["T"][start:stop], non_blocking=True)
                    matrix_at += stop - start

    def read(self, slot: int, token_at: int, n_tokens: int) -> tuple[dict[str, Tensor], ...]:
        """A layer's tensors in an entry's shapes: views, but for a dense T, which is gathered, dead heads zero."""
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
        """All of a slot's tensors; matrices are not a slot's."""
        for layer in self.layers:
            for t in layer.slots.values():
                t[to].copy_(t[source])

    def copy_tokens(self, source: int, to: int, n: int) -> None:
        for layer in self.layers:
            for t in layer.tokens.values():
                t[to : to + n].copy_(t[source : source + n])


def runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """(start, stop) of the longest stretches that are all true."""
    edges = [i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))
