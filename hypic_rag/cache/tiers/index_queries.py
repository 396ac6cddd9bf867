"""What an index says of its entries to people: the list, filtered, and what is remembered of those gone."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypic_rag.cache.record import KEY_TYPES, Record
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.index import Row
from hypic_rag.stored_json import parse_object

COLUMNS = f"id, digest, nbytes, checksum, tokens, key, created, last_used, hits, pinned, {', '.join(KEY_TYPES)}"


@dataclass(frozen=True)
class EntryInfo:
    """An entry of the index. created, last_used: seconds since 1970. hits: uses since it was stored."""

    id: int
    record: Record
    created: float
    last_used: float
    hits: int
    pinned: bool

    @property
    def row(self) -> Row:
        of = self.record
        return Row(self.id, of.digest, of.nbytes, of.checksum, of.format_version, of.n_tokens, of.seam_tokens)


@dataclass(frozen=True)
class Tombstone:
    """An entry that was here. why: as of the miss. key: its fields; empty where an older version stored it."""

    digest: str
    why: Miss
    tokens: str
    key: dict[str, Any]


@dataclass(frozen=True)
class EntryFilter:
    """Which entries; None: any. digest, model: their beginning. unused_since: not used after it, in seconds since 1970.
    tokens: the ``tokens_digest`` of their keys."""

    digest: str | None = None
    namespace: str | None = None
    model: str | None = None
    unused_since: float | None = None
    tokens: str | None = None

    def where(self) -> tuple[str, list[object]]:
        parts: list[str] = ["1"]
        values: list[object] = []
        for column, beginning in (("digest", self.digest), ("model", self.model)):
            if beginning is not None:
                parts.append(f"substr({column}, 1, ?) = ?")
                values += [len(beginning), beginning]
        for column, value in (("namespace", self.namespace), ("tokens", self.tokens)):
            if value is not None:
                parts.append(f"{column} = ?")
                values.append(value)
        if self.unused_since is not None:
            parts.append("last_used <= ?")
            values.append(self.unused_since)
        return " AND ".join(parts), values


def listed(db: sqlite3.Connection, wanted: EntryFilter, limit: int | None = None) -> list[EntryInfo]:
    """List entries, the newest first."""
    where, values = wanted.where()
    query = f"SELECT {COLUMNS} FROM entry WHERE {where} ORDER BY created DESC, id DESC LIMIT ?"
    return [_listed(row) for row in db.execute(query, (*values, -1 if limit is None else limit))]


def gone(db: sqlite3.Connection, digest: str) -> list[Tombstone]:
    """Return what is remembered of digests that begin so, the last gone first."""
    query = "SELECT digest, reason, detail, tokens, key FROM gone WHERE substr(digest, 1, ?) = ? ORDER BY id DESC"
    return [
        Tombstone(name, Miss(reason, detail), tokens, _fields(key))
        for name, reason, detail, tokens, key in db.execute(query, (len(digest), digest))
    ]


def pin(db: sqlite3.Connection, digests: Iterable[str], pinned: bool) -> int:
    """Set whether entries are pinned; return how many were changed."""
    update = "UPDATE entry SET pinned = ? WHERE digest = ? AND pinned <> ?"
    return sum(db.execute(update, (pinned, digest, pinned)).rowcount for digest in digests)


def _listed(row: tuple[Any, ...]) -> EntryInfo:
    number, digest, nbytes, checksum, tokens, key, created, last_used, hits, pinned, *columns = row
    own = dict(zip(KEY_TYPES, columns, strict=True))
    fields = _fields(key)
    if any(fields.get(name) != value for name, value in own.items()):
        fields = own
    return EntryInfo(number, Record(digest, nbytes, checksum, tokens, fields), created, last_used, hits, bool(pinned))


def _fields(key: str) -> dict[str, Any]:
    """Parse a key's fields; empty where an older version wrote none, or where they are damaged:
    nothing but words depends on them."""
    try:
        return parse_object(key) if key else {}
    except ValueError:
        return {}
