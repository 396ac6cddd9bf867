"""Which copies bring an entry into the slabs: its memory in tiles and where each goes, as arrays of integers.

Of 16 entries there are 30,000 tiles: what is the same of all entries of a length is worked out once, what is the same
of an entry each time is kept as long as it lives, and only its place is left to add.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from weakref import WeakKeyDictionary

import numpy as np
from hypic_kernels.copies_reference import ALIGN, TILE
from torch import Tensor

from hypic_rag.cache.entry import Entry
from hypic_rag.cache.tiers.device_tensors import DeviceTensors, PoolPlace, Tensors

MAX_LENGTHS = 64  # of entries, whose tiles are kept: 0.2 MB each
SLOT, TOKEN, MATRIX = range(3)  # numbers of a PoolPlace


@dataclass(frozen=True, eq=False)
class CopyPlan:
    """An entry's tiles, layer after layer: (n,) int64 each, but for the entry's place.

    source: address; nbytes. Where ``place`` is the entry's, it goes to ``to + unit * place[which]``.
    edges: (L + 1,) numbers of the layers' first tiles. live: (n_dense, H) bool, the heads whose T is brought.
    others: of each layer, names of tensors that have no tiles: a kernel cannot reach them, or they lie in another
    order or at odd addresses. on_device: whether the entry was made where the slabs are.
    """

    source: np.ndarray
    nbytes: np.ndarray
    to: np.ndarray
    unit: np.ndarray
    which: np.ndarray
    edges: np.ndarray
    live: np.ndarray
    others: tuple[tuple[str, ...], ...]
    dead_below: float
    on_device: bool

    def items(self, place: PoolPlace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what ``hypic_kernels.copies`` takes: addresses to read and to write, and bytes; (n,) int64 each."""
        return self.source, self.to + self.unit * np.array(place)[self.which], self.nbytes

    def matrices(self, first: int) -> np.ndarray:
        """Return the number of each head's matrix, (n_dense, H) int32: those of live ones in a row
        from ``first`` on; dead ones -1."""
        numbers = first + self.live.cumsum().reshape(self.live.shape) - 1
        return np.where(self.live, numbers, -1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """The tiles of all entries of one length. tensor: the number of a tile's tensor, counted over all
    layers; offset: where the tile begins in it; head: counted over all layers with a dense T, -1 for other
    tensors; the rest as in CopyPlan.

    names: (layer, name) of the tensors. shapes: of each layer what its tensors must be. even: (n_tensors,) whether all
    of a tensor's tiles are of whole ALIGNs, in the slabs too.
    """

    names: list[tuple[int, str]]
    shapes: Sequence[Tensors]

    layer: np.ndarray
    tensor: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    to: np.ndarray
    unit: np.ndarray
    which: np.ndarray
    head: np.ndarray
    even: np.ndarray


class CopyPlanner:
    """Plans the copies of the entries that are put into ``slabs``."""

    def __init__(self, slabs: DeviceTensors):
        self._slabs = slabs
        self._tiles = lru_cache(MAX_LENGTHS)(self._tiles_of)
        self._known: WeakKeyDictionary[Entry, CopyPlan] = WeakKeyDictionary()

    def of(self, entry: Entry, dead_below: float) -> CopyPlan:
        """Plan the copies of an entry, once. dead_below: see ``DevicePool.put``. Raises ValueError where the entry is
        not of the slabs' shapes and types (copies would make it fit)."""
        found = self._known.get(entry)
        if found is None or found.dead_below != dead_below:
            self._known[entry] = found = self._made(entry, dead_below)
        return found

    def _made(self, entry: Entry, dead_below: float) -> CopyPlan:
        n_tokens = entry.n_tokens - entry.seam_tokens
        tiles = self._tiles(n_tokens)
        _require_fit(entry, tiles.shapes)
        live, names = self._live(entry, dead_below), tiles.names
        tensors = [entry.layers[i].tensors[name] for i, name in names]
        address = np.array([t.data_ptr() for t in tensors], dtype=np.int64)
        pinned: dict[int, bool] = {}
        lies_right = [
            (t.transpose(0, 1) if name in self._slabs.shapes[i].tokens else t).is_contiguous()
            and self._is_reached(t, pinned)
            for (i, name), t in zip(names, tensors, strict=True)
        ]
        usable = tiles.even & (address % ALIGN == 0) & np.array(lies_right, dtype=bool)
        left: dict[int, list[str]] = {}
        for k in np.flatnonzero(~usable):
            left.setdefault(names[k][0], []).append(names[k][1])
        rank = np.append(live.cumsum() - 1, 0)  # the last for what is no T
        kept = np.flatnonzero(usable[tiles.tensor] & np.append(live, True)[tiles.head])
        head, tensor, unit = tiles.head[kept], tiles.tensor[kept], tiles.unit[kept]
        return CopyPlan(
            source=address[tensor] + tiles.offset[kept],
            nbytes=tiles.nbytes[kept],
            to=tiles.to[kept] + unit * rank[head],
            unit=unit,
            which=tiles.which[kept],
            edges=np.searchsorted(tiles.layer[kept], np.arange(len(entry.layers) + 1)),
            live=live,
            others=tuple(tuple(left.get(i, ())) for i in range(len(entry.layers))),
            dead_below=dead_below,
            on_device=any(t.device == self._slabs.device for t in tensors[:1]),
        )

    def _live(self, entry: Entry, dead_below: float) -> np.ndarray:
        """Return (n_dense, H) bool: whether a head's T has a norm of at least
        ``dead_below``; that of a NaN is not below."""
        if not self._slabs.heads[0] or dead_below <= 0:
            return np.ones(self._slabs.heads, dtype=bool)
        norms = [norm.numpy() for norm in entry.transition_norms if norm is not None]
        return ~(np.stack(norms) < dead_below)

    def _tiles_of(self, n_tokens: int) -> _Tiles:
        wanted = [dict(shapes.of_entry(n_tokens)) for shapes in self._slabs.shapes]
        stretches = list[tuple[int, ...]]()  # layer, tensor, offset, bytes, to, unit, which, head
        even = list[bool]()
        n_heads = 0
        for i, (shapes, pools) in enumerate(zip(self._slabs.shapes, self._slabs.layers, strict=True)):
            for name, (shape, dtype) in wanted[i].items():
                tensor, nbytes = len(even), prod(shape) * dtype.itemsize
                if name in shapes.slots:
                    base = pools.slots[name].data_ptr()
                    stretches.append((i, tensor, 0, nbytes, base, nbytes, SLOT, -1))
                    even.append(nbytes % ALIGN == 0 == base % ALIGN)
                elif name in shapes.tokens:
                    base = pools.tokens[name].data_ptr()  # an entry begins at a multiple of TOKEN_ALIGN tokens
                    stretches.append((i, tensor, 0, nbytes, base, nbytes // n_tokens, TOKEN, -1))
                    even.append(nbytes % ALIGN == 0 == base % ALIGN)
                else:
                    assert pools.matrices is not None
                    base, one = pools.matrices.data_ptr(), nbytes // shape[0]
                    stretches += [(i, tensor, h * one, one, base, one, MATRIX, n_heads + h) for h in range(shape[0])]
                    even.append(one % ALIGN == 0 == base % ALIGN)
                    n_heads += shape[0]
        layer, tensor, offset, nbytes, to, unit, which, head = np.array(stretches, dtype=np.int64).T
        n_tiles = -(-nbytes // TILE)
        of = np.repeat(np.arange(len(stretches)), n_tiles)
        start = TILE * (np.arange(len(of)) - (n_tiles.cumsum() - n_tiles)[of])
        names = [(i, name) for i, tensors in enumerate(wanted) for name in tensors]
        return _Tiles(
            names, wanted, layer[of], tensor[of], offset[of] + start, np.minimum(nbytes[of] - start, TILE),
            to[of] + start, unit[of], which[of], head[of], np.array(even),
        )  # fmt: skip

    def _is_reached(self, tensor: Tensor, pinned: dict[int, bool]) -> bool:
        """Return whether a kernel on the device reads it where it is. pinned: what is
        known of memories by their address."""
        if tensor.device == self._slabs.device:
            return True
        if self._slabs.device.type != "cuda" or tensor.device.type != "cpu":
            return False
        memory = tensor.untyped_storage().data_ptr()
        if memory not in pinned:
            pinned[memory] = tensor.is_pinned()
        return pinned[memory]


def _require_fit(entry: Entry, shapes: Sequence[Tensors]) -> None:
    if len(entry.layers) != len(shapes):
        raise ValueError(f"the entry has {len(entry.layers)} layers, the pool {len(shapes)}")
    for i, (layer, wanted) in enumerate(zip(entry.layers, shapes, strict=True)):
        found = {name: (t.shape, t.dtype) for name, t in layer.tensors.items()}
        if found != wanted:
            told = {name: (tuple(shape), dtype) for name, (shape, dtype) in found.items()}
            raise ValueError(f"layer {i} of the entry has {told}, but the pool was made for {wanted}")
