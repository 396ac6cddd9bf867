"""A cached segment: per layer a family and named tensors; and its form as a safetensors file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hypic_rag.cache import tensor_file
from hypic_rag.cache.header import FORMAT_NAME, METADATA_NAME, EntryRefused, header_from
from hypic_rag.cache.key import Identity, SegmentKey, difference

PER_TOKEN = frozenset({"K", "V", "latent"})
"""Names of tensors (H, n, D) of what is kept of each token."""


@dataclass(frozen=True, eq=False)
class LayerEntry:
    """What one layer keeps of a segment: its family ("gdn", "attention", ...) and tensors by their names."""

    family: str
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Entry:
    """A cached segment of ``n_tokens`` tokens, whose first ``seam_tokens`` are not in the tensors.

    Tensors of an entry that came from a cache are shared by everyone who looked it up: never modify them.
    """

    n_tokens: int
    seam_tokens: int
    layers: tuple[LayerEntry, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors; the stored file has a few kilobytes more."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors.values())

    @cached_property
    def transition_norms(self) -> tuple[Tensor | None, ...]:
        """Frobenius norms (H,) float32 of each layer's heads' dense T, on the CPU; None where a layer has none."""
        Ts = [layer.tensors.get("T") for layer in self.layers]
        dense = [T for T in Ts if T is not None and T.dim() == 3]
        if not dense:
            return (None,) * len(Ts)
        norms = torch.cat([torch.linalg.vector_norm(T.float(), dim=(1, 2)) for T in dense]).cpu()  # waits once
        found = iter(norms.split([len(T) for T in dense]))
        return tuple(None if T is None or T.dim() != 3 else next(found) for T in Ts)


def pack(entry: Entry, key: SegmentKey) -> list[memoryview]:
    """Pack an entry as a safetensors file, in pieces: tensors "LAYER.NAME", metadata with the key's identity.

    entry: on the CPU; the pieces are its tensors' own memory where they are contiguous.
    Equal entries and keys give equal bytes. Raises ValueError as require_same_segment does.
    """
    require_same_segment(entry, key)
    about = {
        "format": FORMAT_NAME,
        "format_version": key.format_version,
        "digest": key.digest,
        "n_tokens": entry.n_tokens,
        "seam_tokens": entry.seam_tokens,
        "families": [layer.family for layer in entry.layers],
        "key": key.fields(),
    }
    tensors = {f"{i}.{name}": t for i, layer in enumerate(entry.layers) for name, t in layer.tensors.items()}
    return tensor_file.pieces(tensors, {METADATA_NAME: json.dumps(about, sort_keys=True)})


def require_same_segment(entry: Entry, key: SegmentKey) -> None:
    """Raise ValueError if the entry is not of the key's token count and seam."""
    if (entry.n_tokens, entry.seam_tokens) != (key.n_tokens, key.seam_tokens):
        raise ValueError(
            f"the entry has {entry.n_tokens} tokens with a seam of {entry.seam_tokens}, but its key has "
            f"{key.n_tokens} with a seam of {key.seam_tokens}; build both from the same segment and policy"
        )


def unpack(data: memoryview | bytes, asked: Identity) -> Entry:
    """Unpack the entry in ``data``, where its tensors lie, or in a copy where that cannot be written.

    Raises EntryRefused if it is not the one ``asked`` for.
    """
    try:
        tensors, metadata = tensor_file.read(data)
        header = header_from(metadata)
        found = difference(header, asked, where="the file")
        if found is not None:
            raise EntryRefused(*found)
        layers: list[dict[str, Tensor]] = [{} for _ in header.families]
        for full_name, tensor in tensors.items():
            layer, name = full_name.split(".", 1)
            if not layer.isdecimal():  # -1 would be the last
                raise ValueError(f"tensor {full_name} is of no layer")
            layers[int(layer)][name] = tensor
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise EntryRefused("damaged", f"not a stored entry: {type(error).__name__}: {error}") from error
    pairs = zip(header.families, layers, strict=True)
    return Entry(header.n_tokens, header.seam_tokens, tuple(LayerEntry(*pair) for pair in pairs))
