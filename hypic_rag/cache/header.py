"""What a stored file says about itself, and what is wrong with it. Imports no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypic_rag.cache.key import Identity, difference

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


def header_from(metadata: Mapping[str, str]) -> Header:
    """What a file says about itself. Raises ValueError, LookupError or TypeError."""
    about = json.loads(metadata[METADATA_NAME])
    if about["format"] != FORMAT_NAME:
        raise ValueError(f"format is {about['format']!r}, not {FORMAT_NAME!r}")
    identity = (about["digest"], about["n_tokens"], about["seam_tokens"], about["format_version"])
    return Header(*identity, about["families"], about["key"])


def header_of(data: memoryview | bytes, asked: Identity) -> Header:
    """Of a whole file. Raises EntryRefused if it is no stored entry, or not the one ``asked`` for."""
    try:
        start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        said = json.loads(bytes(data[LENGTH_BYTES:start]))
        header = header_from(said.pop("__metadata__"))
        end = max((tensor["data_offsets"][1] for tensor in said.values()), default=0)
        if start + end != len(data):
            raise ValueError(f"its tensors end at byte {start + end} of {len(data)}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EntryRefused("damaged", f"not a stored entry: {type(error).__name__}: {error}") from error
    found = difference(header, asked, where="the file")
    if found is not None:
        raise EntryRefused(*found)
    return header
