"""Values as they leave SQLite: each is checked by its column, or is damage."""

import math
import re
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

Sound = Callable[[object], bool]
"""Whether a value is one that this program writes."""
Columns = Mapping[str, Sound]
Made = Callable[[sqlite3.Cursor, tuple[Any, ...]], Any]


class DamagedRow(sqlite3.DatabaseError):
    """A row holds what this program never writes."""


def whole(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def text(value: object) -> bool:
    return isinstance(value, str)


def text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def blob(value: object) -> bool:
    return isinstance(value, bytes)


def matching(pattern: str) -> Sound:
    """Accept texts that match in whole: what becomes a part of a path."""
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def check_rows(connection: sqlite3.Connection, columns: Columns, made: Made = lambda cursor, row: row) -> None:
    """Let no row leave the connection from here on whose values are not sound; else DamagedRow is raised.

    SQLite gives back whatever stands in a damaged file: a flipped bit may change even types.
    columns: by their names in the rows, every one that is ever asked for; a question for another is an error of the
    caller's. made: what a row becomes.
    """

    def checked(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> Any:
        for (spelt, *_), value in zip(cursor.description, row, strict=True):
            name = spelt.lower()  # as SQLite takes it; what a table calls its columns may be damaged, too
            if not (columns[name] if name in columns else SQLITES_OWN[name])(value):
                raise DamagedRow(f"could not decode {name} {str(value)[:80]!r}")
        return made(cursor, row)

    connection.row_factory = checked


SQLITES_OWN: Columns = {
    "count(*)": whole, "quick_check": text, "user_version": whole, "schema_version": whole,
    "busy": whole, "log": lambda value: isinstance(value, int), "checkpointed": lambda value: isinstance(value, int),
}  # fmt: skip
