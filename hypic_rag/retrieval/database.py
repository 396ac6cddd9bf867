"""Transactions on store.sqlite: from several threads of this process, beside other processes."""

import contextlib
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hypic_rag.errors import BadInput, HypicError, StoreDamaged
from hypic_rag.retrieval import schema
from hypic_rag.retrieval.manifest import how_to_rebuild
from hypic_rag.retrieval.rows import CHUNK
from hypic_rag.sqlite_file import SqliteFile, is_damage, what_to_do

FILE = "store.sqlite"


class StoreDatabase(SqliteFile):
    """What SQLite says of a file that it cannot read comes out as StoreDamaged, of a place as BadInput."""

    def __init__(self, folder: Path, store_id: str):
        """Open and check the database of the store with this id."""
        self.is_sealed = False
        """Whether rows have seals: see rows.py."""
        self.has_page_labels = False

        def check(connection: sqlite3.Connection) -> None:
            self.is_sealed = schema.check(connection, store_id) > 1
            self.has_page_labels = schema.has_page_labels(connection)

        super().__init__(
            folder / FILE,
            f"the store in {folder}",
            partial(_told, folder),
            columns=schema.COLUMNS,
            pragmas=schema.PRAGMAS,
            check=check,
        )

    @property
    def chunk_columns(self) -> str:
        """The columns that ``chunk_of`` takes."""
        return f"{CHUNK}, page_label" if self.has_page_labels else f"{CHUNK}, '' AS page_label"

    def make_room_for_page_labels(self) -> None:
        """Do what a store of an earlier version needs before chunks are written."""
        if not self.has_page_labels:
            with self.deriving() as connection:
                schema.add_page_labels(connection)
            self.has_page_labels = True

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write as SqliteFile does; other processes will see that something has changed."""
        with super().writing() as connection:
            yield connection
            connection.execute("UPDATE info SET value = value + 1 WHERE name = 'generation'")

    @contextlib.contextmanager
    def deriving(self) -> Iterator[sqlite3.Connection]:
        """As ``writing``, of what is made from the rows and changes none of them."""
        with super().writing() as connection:
            yield connection


def _told(folder: Path, error: Exception) -> HypicError:
    if is_damage(error) or not isinstance(error, sqlite3.OperationalError):
        return StoreDamaged(f"{folder / FILE} is damaged: {error}. {how_to_rebuild(folder)}")
    return BadInput(f"{folder / FILE} cannot be used: {error}. {what_to_do(folder / FILE, error)}.")
