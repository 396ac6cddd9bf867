"""Measured rows on disk: appended one by one, so that an interrupted run goes on where it stopped."""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypic_rag.errors import BadInput
from hypic_rag.paths import exists
from hypic_rag.stored_json import parse_object


def row_key(settings: Mapping[str, Any]) -> str:
    """Hash of every setting that decides a row; equal settings in any order give equal keys."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def rows_beside(out: Path) -> Path:
    """Return where the rows of a file of results are, unless it was told otherwise."""
    return out.with_suffix(".rows.jsonl")


class RowFile:
    """A jsonl file of rows by ``key``. ``path`` None keeps them in memory only.

    A last line cut off by a kill is skipped, and its row is measured again.
    Several processes may append to one file; the first row of a key counts.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self.n_unreadable = 0
        self._ends_in_newline = True
        if path is not None:
            self._load(path)

    def get(self, key: str) -> dict[str, Any] | None:
        return self.rows.get(key)

    def append(self, key: str, row: Mapping[str, Any]) -> None:
        """Keep the row under ``key`` and write it at once. Raises BadInput where it cannot be written."""
        stored = {"key": key, **row}
        self.rows.setdefault(key, stored)
        if self.path is None:
            return
        line = ("" if self._ends_in_newline else "\n") + json.dumps(stored, ensure_ascii=False) + "\n"
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._ends_in_newline = False  # as far as is known
            raise BadInput(f"{self.path} cannot be written: {error}. Name another file with --rows.") from error
        self._ends_in_newline = True

    def _load(self, path: Path) -> None:
        try:
            content = path.read_bytes() if exists(path) else b""
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path} cannot be used to keep rows: {error}. Name another file with --rows.") from error
        self._ends_in_newline = content.endswith(b"\n") or not content
        for line in filter(None, content.split(b"\n")):
            try:
                row = parse_object(line)
                self.rows.setdefault(row["key"], row)
            except (ValueError, KeyError, TypeError):
                self.n_unreadable += 1
