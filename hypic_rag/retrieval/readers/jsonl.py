"""Rows of a JSON lines file: one document a row, or several in a row of question answering data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypic_rag.errors import BadInput
from hypic_rag.paths import path_text, reason
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, clean
from hypic_rag.retrieval.readers.encoding import NotText, decode


class _BadRow(Exception):
    """What is wrong with a row, in words."""


def read_jsonl(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield documents of rows ``{title?, text, id?, ...metadata}`` or ``{id?, docs: [{title?, text}, ...], ...}``.

    Of ``docs`` equal ones (title and text) are given once a file. A bad row is a failure that names its line;
    the others are read. A row without an id, or with a blank one, goes by its line number.
    """
    name = path_text(path)
    taken = _own_ids(path)
    lines_by_id: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    n_rows = 0
    for number, raw in _lines(path):
        if not raw.strip():
            continue
        n_rows += 1
        try:
            row = _parse(raw)
            row_id = _own_id(row) or _marked(str(number), "line", taken)
            first = lines_by_id.setdefault(row_id, number)
            if first != number:
                raise _BadRow(f"its id {row_id!r} was used on line {first} already")
            if isinstance(row.get("docs"), list):
                yield from _documents_of_question(name, row_id, row["docs"], seen, taken)
            else:
                yield _document(name, f"{name}#{row_id}", row)
        except _BadRow as error:
            yield ReadFailure(name, str(error), line=number)
    if n_rows == 0:
        yield ReadFailure(name, "is empty", skipped=True)


def text_lines(path: Path) -> list[str]:
    """Read a UTF-8 file's lines, cut at newlines alone: splitlines() would cut at U+2028 in
    a JSON string. Raises BadInput."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:  # UnicodeDecodeError, and a NUL in the path
        raise BadInput(f"{path_text(path)} cannot be read: {reason(error)}. Give a UTF-8 text file") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # Split at b"\n" alone: str.splitlines would cut at U+2028 and others, which JSON strings may hold.
    with path.open("rb") as file:
        start = file.read(4096)
        file.seek(0)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text, _ = decode(file.read())
            yield from enumerate(text.removeprefix("\ufeff").encode().split(b"\n"), 1)
            return
        if b"\0" in start:
            raise NotText("is a binary file (it holds NUL bytes)", is_binary=True)
        for number, line in enumerate(file, 1):
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _own_ids(path: Path) -> set[str]:
    """Collect the ids of all rows: known before the first row is given, as any later one may
    have what would be another's name."""
    found = set()
    for _, raw in _lines(path):
        with contextlib.suppress(_BadRow):
            found.add(_own_id(_parse(raw)))
    return found


def _own_id(row: dict[str, Any]) -> str:
    """Return a row's id as it stands in the document's; empty where there is none, or a blank one."""
    own = "" if row.get("id") is None else clean(f"#{row['id']}")[1:]
    return own if own.strip() else ""


def _marked(name: str, mark: str, taken: set[str]) -> str:
    """Return the name that a row has by its place, with a mark where it is another row's own id."""
    while name in taken:
        name = f"{mark} {name}"
    return name


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BadRow(f"is not UTF-8: {error.reason} at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise _BadRow(f"is a JSON {type(row).__name__}, not an object with a text")
    return row


def _documents_of_question(
    name: str, row_id: str, docs: list[Any], seen: set[tuple[str, str]], taken: set[str]
) -> Iterator[SourceDocument]:
    for n, doc in enumerate(docs, 1):
        if not isinstance(doc, dict):
            raise _BadRow(f"docs[{n - 1}] is a JSON {type(doc).__name__}, not an object with a text")
        # Whether a passage answers the row's question says nothing of the passage.
        passage = {key: value for key, value in doc.items() if key != "gold"}
        document = _document(name, f"{name}#{_marked(f'{row_id}/{n}', 'passage', taken)}", passage)
        if (document.title, document.text) not in seen:
            seen.add((document.title, document.text))
            yield document


def _document(name: str, doc_id: str, row: dict[str, Any]) -> SourceDocument:
    title, text = row.get("title"), row.get("text")
    if not isinstance(text, str):
        found = f"its text is a JSON {type(text).__name__}" if "text" in row else "it has no text"
        raise _BadRow(f"{found}; wanted: {{'title': ..., 'text': ...}}")
    if not isinstance(title, str | None):
        raise _BadRow(f"its title is a JSON {type(title).__name__}, not a string")
    text = clean(text)
    if not text.strip():
        raise _BadRow("its text is empty")
    metadata: dict[str, Any] = {"path": name, "format": "jsonl"}
    for key in row.keys() - {"id", "title", "text"}:
        metadata[f"row_{key}" if key in ("path", "format") else key] = row[key]
    return SourceDocument(clean(doc_id), clean(title or "").strip(), text, metadata)
