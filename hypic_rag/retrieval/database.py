"""Transactions on store.sqlite: from several threads of this process, beside other processes."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.locks import StateLock
from hypic_rag.retrieval import schema
from hypic_rag.retrieval.manifest import how_to_rebuild
from hypic_rag.transaction import transaction

FILE = "store.sqlite"
SIGNS_OF_DAMAGE = ("no such", "malformed", "Could not decode to UTF-8")  # in an OperationalError


class Database:
    """One connection, used by one thread at a time; other writers are waited for up to a minute.

    What SQLite says of a file that it cannot read comes out as StoreDamaged, of a place as BadInput.
    """

    def __init__(self, folder: Path, store_id: str):
        """Opens and checks the database of the store with this id."""
        self.folder = folder
        self._lock = StateLock(f"the store in {folder}")
        with damage_reported(folder):
            self.connection = schema.connect(folder / FILE)
            try:
                schema.check(self.connection, store_id)
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        """In a forked child nothing: the connection is the parent's."""
        if not self._lock.is_here:
            return
        with self._lock:
            self.connection.close()

    def compact(self) -> None:
        """What was deleted leaves the log too, in which the pages before a deletion still stand; not while another
        process reads."""
        with self._lock, damage_reported(self.folder):
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view for everything read inside. Inside ``writing`` it is part of that
        transaction."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or none of it; other processes will see that something has changed."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection
            connection.execute("UPDATE info SET value = value + 1 WHERE name = 'generation'")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, damage_reported(self.folder):
            if self.connection.in_transaction:  # which this is part of
                yield self.connection
                return
            with transaction(self.connection, begin):
                yield self.connection


@contextlib.contextmanager
def damage_reported(folder: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(sign in str(error) for sign in SIGNS_OF_DAMAGE):
            raise StoreDamaged(
                f"{folder / FILE} is incomplete or damaged: {error}. {how_to_rebuild(folder)}"
            ) from error
        raise BadInput(
            f"{folder / FILE} cannot be used: {error}. Check the permissions of {folder}, the free space "
            f"there, and whether another program holds it, then try again."
        ) from error
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(f"{folder / FILE} cannot be read: {error}. {how_to_rebuild(folder)}") from error
