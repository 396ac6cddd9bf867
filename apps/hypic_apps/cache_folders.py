"""The segments of a store or of the server, as they lie on disk: which folder, the list, the sums. Imports no torch."""

import contextlib
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hypic_rag.cache.report import Miss, Problem
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.index_queries import EntryFilter, EntryInfo
from hypic_rag.collections import opening
from hypic_rag.config import Settings, format_budget, format_bytes, store_folder
from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.paths import exists
from hypic_rag.sqlite_file import DAMAGE_ERRORS, what_to_do

SEGMENTS = "segments"  # as retrieval.Store names it, whose import takes a second
SHORT = 12
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@contextlib.contextmanager
def opened(settings: Settings, of_server: bool, create: bool = False) -> Iterator[EntryFolder]:
    """Open the cache folder of the settings' store, or the server's, which its collections share.

    Raises BadInput where there is none, StoreDamaged, StoreMismatch.
    """
    store = None if of_server else settings.store
    folder = (opening.server_folder() if store is None else store_folder(store)) / SEGMENTS
    if not create and not exists(folder):
        where = "no collection has any yet" if store is None else "name another --store, or none for the collections'"
        raise BadInput(f"there are no segments in {folder}: {where}")
    cache = EntryFolder(folder, settings.disk_budget)
    try:
        yield cache
    except DAMAGE_ERRORS as error:
        raise StoreDamaged(
            f"the cache index in {folder} cannot be used: {error}. {what_to_do(folder / 'index.sqlite', error)}"
        ) from error
    finally:
        cache.close()


def namespace_of(settings: Settings, of_server: bool, given: str | None) -> str | None:
    """Return whose segments are meant: what was given, else the settings' collection,
    else (None) all. Raises BadInput."""
    if given is not None or of_server or settings.store is not None:
        return given
    with opening.named(settings) as collection:
        return collection.namespace


def seconds_of(age: str) -> float:
    """Parse ``90m``, ``12h``, ``7d`` to seconds. Raises BadInput."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", age)
    if match is None:
        raise BadInput(f"{age!r} is not an age. Write it like 90m, 12h, 7d or 4w")
    return float(match[1]) * SECONDS[match[2]]


def named(cache: EntryFolder, digests: Iterable[str]) -> list[EntryInfo]:
    """Find the entries whose digests begin so. Raises BadInput where one is none's, or several entries'."""
    found = []
    for digest in digests:
        if not digest:
            raise BadInput("a digest is empty: give its first letters, as hypic-rag cache ls shows them")
        entries = cache.listed(EntryFilter(digest=digest))
        if len(entries) != 1:
            what = (
                f"{len(entries)} entries have a digest that begins" if entries else "no entry has a digest that begins"
            )
            raise BadInput(
                f"{what} with {digest}: hypic-rag cache ls shows them, hypic-rag cache why what became of one"
            )
        found += entries
    return found


def entry_fields(entry: EntryInfo) -> dict[str, Any]:
    """Return an entry's fields, times in seconds since 1970."""
    return {
        **entry.record.fields(),
        "created": entry.created,
        "last_used": entry.last_used,
        "hits": entry.hits,
        "pinned": entry.pinned,
    }


def list_text(entries: Iterable[EntryInfo]) -> str:
    rows = [("digest", "kind", "tokens", "bytes", "namespace", "model", "made", "used", "hits", "")]
    for entry in entries:
        record, key = entry.record, entry.record.key
        rows.append((
            record.digest[:SHORT], key["kind"], str(record.n_tokens), format_bytes(record.nbytes),
            key["namespace"] or "-", key["model"][:8], ago(entry.created), ago(entry.last_used), str(entry.hits),
            "pinned" if entry.pinned else "",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows)


def ago(then: float) -> str:
    """Write how long ago it was: ``3h ago``."""
    age = max(0.0, time.time() - then)
    unit = next((name for name in "wdhm" if age >= SECONDS[name]), "s")
    return f"{int(age // SECONDS[unit])}{unit} ago"


def stat_fields(cache: EntryFolder, namespace: str | None = None) -> dict[str, Any]:
    """Describe the disk tier, or a namespace in it; memory tiers are a running process's own (GET /v1/server)."""
    entries = cache.listed(EntryFilter(namespace=namespace))
    space = shutil.disk_usage(cache.folder)
    return {
        "folder": str(cache.folder),
        "tier": "disk",
        **_sum(entries),
        "budget": cache.budget,
        "free_disk": space.free,
        "n_pinned": sum(entry.pinned for entry in entries),
        "trouble": cache.trouble,
        "namespaces": _by(entries, "namespace"),
        "models": _by(entries, "model"),
        "kinds": _by(entries, "kind"),
    }


def stat_text(fields: dict[str, Any]) -> str:
    lines = [
        f"folder      {fields['folder']}",
        f"disk        {_of(fields)} of {format_budget(fields['budget'])}",
        f"free        {format_bytes(fields['free_disk'])}",
        f"pinned      {fields['n_pinned']}",
    ]
    if fields["trouble"]:
        lines.append(f"trouble     {fields['trouble']}")
    for title in ("namespaces", "models", "kinds"):
        for name, sums in fields[title].items():
            lines.append(f"{title[:-1]:<11} {name or '-'}: {_of(sums)}")
    return "\n".join(lines)


def repair(cache: EntryFolder, problems: Iterable[Problem]) -> None:
    """Remove entries whose files are bad, and files of no entry."""
    for problem in problems:
        if problem.digest and problem.reason not in ("orphan", "leftover"):
            cache.discard([problem.digest], Miss("damaged", problem.detail))
    cache.gc()


def problem_text(problems: Iterable[Problem]) -> str:
    return "\n".join(f"{one.digest[:SHORT] or 'index':<{SHORT}}  {one.reason}: {one.detail}" for one in problems)


def _sum(entries: Iterable[EntryInfo]) -> dict[str, int]:
    sizes = [entry.record.nbytes for entry in entries]
    return {"n_entries": len(sizes), "nbytes": sum(sizes)}


def _by(entries: list[EntryInfo], field: str) -> dict[str, dict[str, int]]:
    """Sum entries by a field of their keys, the largest first."""
    groups: dict[str, list[EntryInfo]] = {}
    for entry in entries:
        groups.setdefault(entry.record.key[field], []).append(entry)
    sums = {name: _sum(group) for name, group in groups.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]["nbytes"]))


def _of(sums: dict[str, Any]) -> str:
    return f"{sums['n_entries']} entries, {format_bytes(sums['nbytes'])}"
