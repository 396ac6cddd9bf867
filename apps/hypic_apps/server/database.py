"""server.sqlite: whose collections there are, their files and how far each of them is."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from hypic_apps.server.errors import NoRoom
from hypic_rag.errors import StoreDamaged
from hypic_rag.transaction import transaction

FINISHED = ("ready", "failed")  # of a file's status
TABLES = """
CREATE TABLE IF NOT EXISTS collections (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, created_at INTEGER NOT NULL,
    deleting INTEGER NOT NULL DEFAULT 0  -- gone for its tenant; what is left of it is being removed
);
CREATE UNIQUE INDEX IF NOT EXISTS collection_by_name ON collections (tenant, name) WHERE NOT deleting;
CREATE TABLE IF NOT EXISTS files (
    n INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of their arrival
    id TEXT NOT NULL UNIQUE, collection_id TEXT NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
    filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'queued',  -- parsing, prefilling, ready, failed; deleting: as of a collection
    error TEXT, n_documents INTEGER NOT NULL DEFAULT 0, n_chunks INTEGER NOT NULL DEFAULT 0,
    n_segments INTEGER NOT NULL DEFAULT 0, n_prefilled INTEGER NOT NULL DEFAULT 0,
    tokens_done INTEGER NOT NULL DEFAULT 0, tokens_total INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS files_by_collection ON files (collection_id, n);
CREATE INDEX IF NOT EXISTS files_by_status ON files (status, n);
-- Digests of segments that a file's ingestion makes, until its chunks are all in the store and lead to them.
CREATE TABLE IF NOT EXISTS making (
    file_id TEXT NOT NULL REFERENCES files (id) ON DELETE CASCADE, digest TEXT NOT NULL, PRIMARY KEY (file_id, digest)
) WITHOUT ROWID;
-- Digests ('' for all of the namespace) that were discarded while requests may have been making them again.
CREATE TABLE IF NOT EXISTS leaving (
    namespace TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (namespace, digest)
) WITHOUT ROWID;
"""


class Database:
    """One connection, used by one thread at a time; a commit is on the disk. Other processes may use the file too."""

    def __init__(self, path: Path):
        """Made where it is missing. Raises NoRoom where it cannot be written, StoreDamaged where it cannot be read."""
        self.path = path
        self._lock = threading.RLock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors_told():
            self._connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self._connection.row_factory = sqlite3.Row
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            self.define(TABLES)

    def define(self, tables: str) -> None:
        """Makes tables that are not there; for those of other modules."""
        with self.writing() as db:
            for statement in _statements(tables):
                db.execute(statement)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view; rows answer to their columns' names."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or none of it. Raises NoRoom where the disk takes no more."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def compact(self) -> None:
        """What was deleted leaves the log too."""
        with self._lock, self._errors_told():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors_told():
            if self._connection.in_transaction:  # which this is part of
                yield self._connection
                return
            with transaction(self._connection, begin):
                yield self._connection

    @contextlib.contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise NoRoom(f"{self.path.name}: {error}") from error
        except sqlite3.IntegrityError:
            raise  # for whoever asked: a name or an id that is there already, or no more
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(
                f"{self.path} cannot be read: {error}. Move {self.path.parent} away and send your files again"
            ) from error


def _statements(script: str) -> Iterator[str]:
    """One by one, since ``executescript`` would commit first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
