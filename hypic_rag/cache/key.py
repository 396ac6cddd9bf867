"""What decides a cached segment: every field of its key, and the digest that names its file."""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, Protocol

FORMAT_VERSION = 1  # of a stored entry; raise it when files of the old layout must not be read

Kind = Literal["leading", "document"]


class Identity(Protocol):
    """What a key, an index row and a file's header all say about one entry, so that they can be compared."""

    @property
    def digest(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def seam_tokens(self) -> int: ...
    @property
    def format_version(self) -> int: ...


@dataclass(frozen=True)
class SegmentKey:
    """Equal keys mean equal entries up to rounding; a change in any field is another entry.

    model: fingerprint of the weights. tokenizer: its name or fingerprint.
    token_ids: the whole segment, seam included, isolation prefix not.
    seam_tokens: how many first tokens the entry leaves out; 0 for a leading segment.
    compute_dtype, rope, isolation_prefix: how the segment was prefilled.
    codec: how tensors are stored (see ``codec.py``), "none" for as computed. namespace: keeps tenants apart.
    """

    model: str
    tokenizer: str
    token_ids: tuple[int, ...]
    kind: Kind
    seam_tokens: int
    compute_dtype: str
    rope: str
    isolation_prefix: tuple[int, ...] = ()
    codec: str = "none"
    namespace: str = ""
    format_version: int = FORMAT_VERSION

    @property
    def n_tokens(self) -> int:
        """Tokens of the segment, seam included."""
        return len(self.token_ids)

    @cached_property
    def digest(self) -> str:
        """64 hex digits: sha256 over all fields, by name, as JSON (no two keys share an encoding)."""
        everything = {field.name: getattr(self, field.name) for field in fields(self)}
        encoded = json.dumps(everything, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(encoded.encode("ascii")).hexdigest()

    @property
    def tokens_digest(self) -> str:
        """64 hex digits: sha256 of the token ids alone, equal for the same segment under another policy or model
        with the same tokenizer. Tells why one is not found; nothing is found by it."""
        return hashlib.sha256(json.dumps(self.token_ids, separators=(",", ":")).encode("ascii")).hexdigest()

    def fields(self) -> dict[str, str | int | list[int]]:
        """Return all fields but the token ids, of which only the number ``n_tokens`` is told; fit for JSON."""
        return {
            "model": self.model,
            "tokenizer": self.tokenizer,
            "n_tokens": self.n_tokens,
            "kind": self.kind,
            "seam_tokens": self.seam_tokens,
            "compute_dtype": self.compute_dtype,
            "rope": self.rope,
            "isolation_prefix": list(self.isolation_prefix),
            "codec": self.codec,
            "namespace": self.namespace,
            "format_version": self.format_version,
        }


def difference(found: Identity, asked: Identity, where: str) -> tuple[str, str] | None:
    """Return (reason, detail) of the first thing in which ``found`` is not what was ``asked``, or None."""
    if found.format_version != asked.format_version:
        return "other_version", f"{where} has format {found.format_version}, asked {asked.format_version}"
    if found.digest != asked.digest:
        return "wrong_key", f"{where} is of key {str(found.digest)[:12]}, asked {asked.digest[:12]}"
    if found.n_tokens != asked.n_tokens:
        return "wrong_shape", f"{where} has {found.n_tokens} tokens, asked {asked.n_tokens}"
    if found.seam_tokens != asked.seam_tokens:
        return "wrong_shape", f"{where} has a seam of {found.seam_tokens} tokens, asked {asked.seam_tokens}"
    return None
