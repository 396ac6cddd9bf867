"""Codecs: how the tiers store an entry's tensors in fewer bytes, and what comes back of them.

A codec names the tensors that it encodes; all others (a diagonal's log_T, a tail) are stored as they are. Of a tensor
``T`` of type float32 the encoded entry has the parts ``T.float32.int8``, ``T.float32.scale`` and so on, so that it says
by itself what it decodes to. A change of what a codec stores is another codec, under another name: keys hold the name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from hypic_rag.cache.entry import Entry, LayerEntry
from hypic_rag.cache.header import EntryRefused
from hypic_rag.errors import BadInput, nearest

BLOCK = 32
"""Elements that share a scale: of 64, S would be off by a quarter more, to save 3% of the bytes."""
DEAD_NORM = 1e-4
"""Frobenius norm of a head's dense T below which it is stored as zero."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}

Parts = dict[str, Tensor]


class Encoding(Protocol):
    """How one tensor, whose first dimension is its heads, is stored."""

    def encode(self, tensor: Tensor) -> Parts: ...

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Turn parts back into the tensor. Raises ValueError or LookupError where they
        are not what ``encode`` makes."""
        ...

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        """Count the bytes of the parts, at most."""
        ...


@dataclass(frozen=True)
class Int8:
    """8 bits an element, and a bfloat16 scale for every BLOCK elements of a head in a row (the last block is shorter).

    The scale is a block's largest magnitude / 127, rounded: every element is off by at most half of it, but the largest
    by a little more where the scale was rounded down (1 in 256 of it).
    """

    def encode(self, tensor: Tensor) -> Parts:
        blocks = _blocks(tensor.float())
        scale = (blocks.abs().amax(-1, keepdim=True) / 127).bfloat16()
        levels = (blocks / torch.where(scale == 0, 1, scale).float()).round().clamp(-127, 127).to(torch.int8)
        return {"int8": _unblocked(levels, tensor.shape), "scale": scale[..., 0]}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        levels, scale = _exactly(parts, "int8", "scale")
        _require(levels, torch.int8, levels.shape)
        _require(scale, torch.bfloat16, (levels.shape[0], _n_blocks(levels.shape)))
        return _unblocked(_blocks(levels).float().mul_(scale.float()[..., None]), levels.shape).to(dtype)

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        return math.prod(shape) + 2 * shape[0] * _n_blocks(shape)


@dataclass(frozen=True)
class Int8Centred:
    """Keys (H, n, D): the mean of every channel in bfloat16, what lies about it as Int8.

    Some channels of keys are large on every token, and would set the scale of all that share it (default model: 0.78%
    of a K's norm is lost without, 0.39% with; of V there are none).
    """

    def encode(self, tensor: Tensor) -> Parts:
        mean = tensor.float().mean(dim=1, keepdim=True).bfloat16()
        return {"mean": mean, **Int8().encode(tensor.float() - mean.float())}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        mean, levels, scale = _exactly(parts, "mean", "int8", "scale")
        about = Int8().decode({"int8": levels, "scale": scale}, torch.float32)
        _require(mean, torch.bfloat16, (about.shape[0], 1, *about.shape[2:]))
        return about.add_(mean.float()).to(dtype)

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        return 2 * math.prod(shape) // shape[1] + Int8().nbytes(shape, itemsize)


@dataclass(frozen=True)
class Int8Transition:
    """A dense T (H, K, K): the diagonals of live heads in float32, what lies beside them as Int8.

    A live T is near a multiple of the identity, so with its diagonal in the blocks the rest would be rounded by what is
    many times its size (default model: 1.2% of a T's norm, against 0.1%). Heads with a norm below DEAD_NORM are not
    stored and decode to zeros.
    """

    def encode(self, tensor: Tensor) -> Parts:
        live = ~(torch.linalg.vector_norm(tensor.float(), dim=(1, 2)) < DEAD_NORM)  # a NaN is alive
        T = tensor[live].float()
        diagonal = T.diagonal(dim1=1, dim2=2).clone()
        beside = T - torch.diag_embed(diagonal)
        return {"live": live, "diagonal": diagonal, **Int8().encode(beside)}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        live, diagonal, levels, scale = _exactly(parts, "live", "diagonal", "int8", "scale")
        n_live, k_dim = int(live.sum()), levels.shape[-1]
        _require(live, torch.bool, (live.numel(),))
        _require(levels, torch.int8, (n_live, k_dim, k_dim))
        _require(diagonal, torch.float32, (n_live, k_dim))
        of_live = Int8().decode({"int8": levels, "scale": scale}, dtype)
        of_live.diagonal(dim1=1, dim2=2).copy_(diagonal)
        if n_live == len(live):
            return of_live
        T = of_live.new_zeros(len(live), k_dim, k_dim)
        T[live] = of_live
        return T

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        """Count the bytes of the parts where all heads are alive."""
        n_heads, k_dim, _ = shape
        return n_heads * (1 + 4 * k_dim) + Int8().nbytes(shape, itemsize)


@dataclass(frozen=True)
class Half:
    """At most 16 bits an element: float32 is rounded to bfloat16 (which has its range), the others are kept."""

    def encode(self, tensor: Tensor) -> Parts:
        return {"half": tensor.bfloat16() if tensor.dtype == torch.float32 else tensor}

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        (half,) = _exactly(parts, "half")
        _require(half, torch.bfloat16 if dtype == torch.float32 else dtype, half.shape)
        return half.to(dtype)

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        return math.prod(shape) * min(itemsize, 2)


@dataclass(frozen=True)
class Codec:
    """``encodings``: of tensors by their names in an entry; without any, entries are stored as they are."""

    name: str
    encodings: Mapping[str, Encoding]

    def encode(self, entry: Entry) -> Entry:
        """Encode an entry as the tiers store it. Its tensors lie where the entry's do."""
        return entry if not self.encodings else _mapped(entry, self._encoded)

    def decode(self, stored: Entry) -> Entry:
        """Decode to an entry of the first one's names, shapes and types. Raises EntryRefused
        for what ``encode`` never makes."""
        return stored if not self.encodings else _mapped(stored, self._decoded)

    def nbytes(self, name: str, shape: Sequence[int], itemsize: int) -> int:
        """Count the bytes that a tensor takes when stored: exactly, but for a dense T,
        where it is if no head is dead."""
        encoding = self.encodings.get(name)
        return math.prod(shape) * itemsize if encoding is None else encoding.nbytes(shape, itemsize)

    def _encoded(self, tensors: Mapping[str, Tensor]) -> Parts:
        stored: Parts = {}
        for name, tensor in tensors.items():
            encoding = self.encodings.get(name)
            if encoding is None:
                stored[name] = tensor
            else:
                dtype = str(tensor.dtype).removeprefix("torch.")
                stored |= {f"{name}.{dtype}.{part}": values for part, values in encoding.encode(tensor).items()}
        return stored

    def _decoded(self, stored: Mapping[str, Tensor]) -> Parts:
        tensors: Parts = {}
        encoded: dict[tuple[str, str], Parts] = {}
        for full_name, values in stored.items():
            name, _, rest = full_name.partition(".")
            if name in self.encodings:
                dtype, _, part = rest.partition(".")
                encoded.setdefault((name, dtype), {})[part] = values
            else:
                tensors[full_name] = values
        for (name, dtype), parts in encoded.items():
            try:
                if name in tensors:
                    raise ValueError("it is stored twice")
                tensors[name] = self.encodings[name].decode(parts, DTYPES[dtype])
            except (ValueError, LookupError, RuntimeError) as error:
                raise EntryRefused("damaged", f"{name} is not of codec {self.name}: {error}") from error
        return tensors


class _Change(Protocol):
    def __call__(self, tensors: Mapping[str, Tensor], /) -> Parts: ...


def _mapped(entry: Entry, change: _Change) -> Entry:
    layers = tuple(LayerEntry(layer.family, change(layer.tensors)) for layer in entry.layers)
    return replace(entry, layers=layers)


def _exactly(parts: Mapping[str, Tensor], *names: str) -> list[Tensor]:
    """Return the parts of these names, if there are no others."""
    if parts.keys() != set(names):
        raise ValueError(f"its parts are {', '.join(parts)}, not {', '.join(names)}")
    return [parts[name] for name in names]


def _require(part: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if (part.dtype, tuple(part.shape)) != (dtype, tuple(shape)):
        raise ValueError(f"a part is {part.dtype} {tuple(part.shape)}, not {dtype} {tuple(shape)}")


def _n_blocks(shape: Sequence[int]) -> int:
    return -(-math.prod(shape[1:]) // BLOCK)


def _blocks(tensor: Tensor) -> Tensor:
    """Lay (H, ...) out as (H, n_blocks, BLOCK), zeros behind the last element."""
    n_heads, n, n_blocks = tensor.shape[0], math.prod(tensor.shape[1:]), _n_blocks(tensor.shape)
    flat = tensor.reshape(n_heads, n)
    if n % BLOCK:
        flat = pad(flat, (0, n_blocks * BLOCK - n))
    return flat.view(n_heads, n_blocks, BLOCK)


def _unblocked(blocks: Tensor, shape: Sequence[int]) -> Tensor:
    flat = blocks.reshape(shape[0], blocks.shape[1] * BLOCK)
    return flat[:, : math.prod(shape[1:])].reshape(*shape)


_STATES: Mapping[str, Encoding] = {"T": Int8Transition(), "S": Int8()}
CODECS = {
    codec.name: codec
    for codec in (
        Codec("none", {}),
        Codec("int8", {**_STATES, "K": Half(), "V": Half(), "latent": Half()}),
        Codec("int8-kv8", {**_STATES, "K": Int8Centred(), "V": Int8(), "latent": Int8()}),
    )
}


def codec_named(name: str) -> Codec:
    """Return the codec of that name. Raises BadInput for an unknown one."""
    if name not in CODECS:
        raise BadInput(f"there is no codec {name!r}.{nearest(name, list(CODECS))} All: {', '.join(CODECS)}")
    return CODECS[name]
