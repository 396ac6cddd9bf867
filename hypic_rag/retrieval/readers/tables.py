"""Tables and JSON as text that reads well in pieces: every row says what its cells are."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

SEPARATORS = ",;\t|"
SNIFFED = 16_384  # characters looked at to find the separator
MOST_IN_CELL = 10_000_000  # characters; csv's own 131,072 are few for a text in a cell


def row_text(header: Sequence[str], cells: Sequence[str]) -> str:
    """Return ``Item: Desk; Price: $840.00``; a cell without a name stands alone, an empty one is left out."""
    named = []
    for i, cell in enumerate(cells):
        value = " ".join(cell.split())
        name = " ".join(header[i].replace("_", " ").split()) if i < len(header) else ""
        if value:
            named.append(f"{name}: {value}" if name else value)
    return "; ".join(named)


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a line a row, named by the cells of the first where that is a header."""
    header, body = (rows[0], rows[1:]) if is_header(rows) else ((), rows)
    return "\n".join(filter(None, (row_text(header, row) for row in body)))


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row names the columns: names for all of several, each another, none with a number in
    it alone."""
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    names = [cell.strip() for cell in rows[0]]
    if not all(names) or len(set(names)) < len(names):
        return False
    return not any(re.fullmatch(r"[\W\d_]+", name) for name in names)


def csv_text(text: str) -> str:
    """Return the rows of a CSV file as ``table_text``; the separator is found out. Raise ValueError for none."""
    csv.field_size_limit(MOST_IN_CELL)
    try:
        dialect: Any = csv.Sniffer().sniff(text[:SNIFFED], SEPARATORS)
    except csv.Error:  # one column, or uneven rows
        dialect = csv.excel
    try:
        rows = [row for row in csv.reader(io.StringIO(text), dialect) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"is no CSV: {error}") from error
    return table_text(rows)


def json_title_and_text(text: str) -> tuple[str, str]:
    """Return the ``title`` or ``name`` of an object, else "", and a line for each value or flat object, named by its
    keys. Raise ValueError for what is not JSON."""
    value = json.loads(text)
    title = ""
    if isinstance(value, dict):
        title = next((value[key] for key in ("title", "name") if isinstance(value.get(key), str)), "")
    return title, "\n".join(_lines(value, ""))


def _lines(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        if name and all(map(_is_plain, value.values())):
            yield f"{name}: {row_text([*map(str, value)], [*map(_plain, value.values())])}"
            return
        for key, inner in value.items():
            yield from _lines(inner, f"{name}, {_words(key)}" if name else _words(key))
    elif isinstance(value, list):
        if all(map(_is_plain, value)):
            yield from _lines(", ".join(filter(None, map(_plain, value))), name)
            return
        for inner in value:
            yield from _lines(inner, name or "item")
    elif plain := _plain(value):
        yield f"{name}: {plain}" if name else plain


def _words(key: str) -> str:
    return " ".join(key.replace("_", " ").split())


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
