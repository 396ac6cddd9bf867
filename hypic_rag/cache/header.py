"""What a stored file says about itself, and what is wrong with it. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypic_rag.cache.key import Identity, difference
from hypic_rag.stored_json import made, parse_object

FORMAT_NAME = "hypic-entry"
METADATA_NAME = "hypic"  # one name with JSON in it: safetensors itself writes several names in a random order
LENGTH_BYTES = 8  # of a safetensors file: the length of its header, which follows


class EntryRefused(Exception):
    """Stored bytes are not the entry that was asked for. ``reason`` and ``detail`` are those of the miss."""

    def __init__(self, reason: str, detail: str):
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Header:
    """What a file says about itself. key: the key's ``fields()``."""

    digest: str
    n_tokens: int
    seam_tokens: int
    format_version: int
    families: list[str]
    key: Mapping[str, Any]


@dataclass(frozen=True)
class TensorSpan:
    """Where a tensor lies: bytes ``first`` to ``stop`` behind the header. dtype: as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    stop: int


def layout(data: memoryview | bytes) -> tuple[dict[str, TensorSpan], Mapping[str, str], int]:
    """Read where the tensors of a safetensors file lie, its metadata, and where the first begins.

    Raises ValueError, LookupError or TypeError unless they lie one behind the other, from there to the file's end.
    """
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    said = parse_object(bytes(data[LENGTH_BYTES:start]))
    metadata = said.pop("__metadata__", {})
    places = {}
    for name, about in said.items():
        first, stop = about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (first, stop, *about["shape"])):
            raise ValueError(f"tensor {name} has shape {about['shape']}, at {about['data_offsets']}")
        places[name] = TensorSpan(about["dtype"], tuple(about["shape"]), first, stop)
    at = 0
    for place in sorted(places.values(), key=lambda place: (place.first, place.stop)):
        if place.first != at:
            raise ValueError(f"a tensor begins at byte {place.first}, the one before ends at {at}")
        at = place.stop
    if start + at != len(data):
        raise ValueError(f"its tensors end at byte {start + at} of {len(data)}")
    return places, metadata, start


def header_from(metadata: Mapping[str, str]) -> Header:
    """Read what a file says about itself. Raises ValueError, LookupError or TypeError."""
    about = parse_object(metadata[METADATA_NAME])
    if (format := about.pop("format")) != FORMAT_NAME:
        raise ValueError(f"format is {format!r}, not {FORMAT_NAME!r}")
    return made(Header, about)


def header_of(data: memoryview | bytes, asked: Identity) -> Header:
    """Read the header of a whole file. Raises EntryRefused if it is no stored entry, or not the one ``asked`` for."""
    try:
        _, metadata, _ = layout(data)
        header = header_from(metadata)
    except (ValueError, LookupError, TypeError) as error:
        raise EntryRefused("damaged", f"not a stored entry: {type(error).__name__}: {error}") from error
    found = difference(header, asked, where="the file")
    if found is not None:
        raise EntryRefused(*found)
    return header
