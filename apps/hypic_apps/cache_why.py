"""Why a segment is found in a cache folder or is not: what is known of its digest, and of others of the same tokens."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hypic_apps.cache_folders import SHORT, ago, entry_fields
from hypic_rag.cache.header import EntryRefused, header_of
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.index_queries import EntryFilter, EntryInfo
from hypic_rag.config import Settings, format_bytes

LEAST_DIGITS = 8


def is_digest(cache: EntryFolder, what: str) -> bool:
    """Return whether it is the beginning of one: of one that is known, or too long to be meant for a word."""
    if not re.fullmatch("[0-9a-f]{1,64}", what):
        return False
    return len(what) >= LEAST_DIGITS or bool(cache.listed(EntryFilter(digest=what), 1) or cache.gone(what))


def of_digest(cache: EntryFolder, digest: str) -> list[dict[str, Any]]:
    """Explain every entry, here or gone, whose digest begins so; one that says "never_seen" where there is none."""
    found = [_here(cache, entry) for entry in cache.listed(EntryFilter(digest=digest))]
    for gone in cache.gone(digest):
        near = _near(cache, gone.tokens, gone.key, gone.digest)
        found.append(_absent(gone.digest, gone.why.reason, gone.why.detail, gone.key, near))
    return found or [_absent(digest, "never_seen", "", {}, [])]


def of_text(
    cache: EntryFolder, settings: Settings, text: str, title: str, namespace: str, chunk_tokens: int | None
) -> Iterator[dict[str, Any]]:
    """Explain a text, or every chunk of a file, asked as the settings ask now. Loads the model.

    chunk_tokens: at most so many a chunk; None: the default.
    """
    from hypic_apps import session
    from hypic_rag.cache.key import SegmentKey
    from hypic_rag.retrieval.chunking import DEFAULT_CHUNK_TOKENS, split_document
    from hypic_rag.retrieval.readers import SourceDocument, read_path
    from hypic_rag.retrieval.segments import stored_segment

    with session.open_engine(settings) as engine:
        chunks = [(title, text)]
        if os.path.isfile(text):  # what is too long for a name is a text
            chunks = [
                (chunk.title, chunk.text)
                for document in read_path([text])
                if isinstance(document, SourceDocument)
                for chunk in split_document(
                    document.title, document.text, engine.format, chunk_tokens or DEFAULT_CHUNK_TOKENS
                )
            ]
        for chunk_title, chunk_text in chunks:
            stored = stored_segment(engine.within(namespace), chunk_title, chunk_text)
            about = {"text": chunk_text[:80]}
            if stored is None:
                yield {**about, **_absent("", "live", "it is no longer than the seam, and never cached", {}, [])}
                continue
            key: SegmentKey = stored[1]
            (fields,) = of_digest(cache, key.digest)
            if fields["state"] == "absent":
                fields["key"] = key.fields()
                fields["near"] = _near(cache, key.tokens_digest, key.fields(), key.digest)
            yield {**about, **fields}


def text_of(fields: Mapping[str, Any]) -> str:
    """Write an explanation for people."""
    lines = [f"“{fields['text']}”"] if "text" in fields else []
    name = fields["digest"][:SHORT]
    if fields["state"] == "here":
        lines.append(
            f"{name} is on disk: {fields['nbytes']:,} bytes ({format_bytes(fields['nbytes'])}), "
            f"made {ago(fields['created'])}, used {fields['hits']} times, last {ago(fields['last_used'])}"
            + (", pinned" if fields["pinned"] else "")
        )
        lines.append("its file is whole" if not fields["reason"] else f"{fields['reason']}: {fields['detail']}")
    else:
        detail = f" ({fields['detail']})" if fields["detail"] else ""
        lines.append(f"{name or 'it'} is not on disk: {fields['reason']}{detail}")
    lines += [f"  {field:<16} {value}" for field, value in fields["key"].items()]
    for near in fields["near"]:
        differs = ", ".join(f"{field} {theirs!r}, not {asked!r}" for field, (theirs, asked) in near["differs"].items())
        lines.append(f"the same tokens are there as {near['digest'][:SHORT]}: {differs or 'their keys are not known'}")
    return "\n".join(lines)


def _here(cache: EntryFolder, entry: EntryInfo) -> dict[str, Any]:
    """reason: what is wrong with the file; empty where it is whole."""
    reason = detail = ""
    key = entry.record.key
    try:
        key = header_of(cache.contents(entry.row), entry.record).key
    except EntryRefused as bad:
        reason, detail = bad.reason, bad.detail
    near = _near(cache, entry.record.tokens, key, entry.record.digest)
    return {**entry_fields(entry), "key": dict(key), "state": "here", "reason": reason, "detail": detail, "near": near}


def _absent(
    digest: str, reason: str, detail: str, key: Mapping[str, Any], near: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"digest": digest, "state": "absent", "reason": reason, "detail": detail, "key": dict(key), "near": near}


def _near(cache: EntryFolder, tokens: str, key: Mapping[str, Any], digest: str) -> list[dict[str, Any]]:
    """Find entries of the same tokens under another key, and in which fields: (theirs, what was asked)."""
    if not tokens:  # an older version stored it
        return []
    found = []
    for entry in cache.listed(EntryFilter(tokens=tokens)):
        if entry.record.digest != digest:
            theirs = entry.record.key
            names = [name for name in theirs if key and theirs[name] != key.get(name)]
            differs = {name: (theirs[name], key.get(name)) for name in names}
            found.append({"digest": entry.record.digest, "differs": differs})
    return found
