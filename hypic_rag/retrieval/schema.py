"""The tables of store.sqlite."""

import contextlib
import hashlib
import sqlite3
from pathlib import Path

from hypic_rag.errors import BadInput, StoreDamaged

VERSION = 1
TABLES = """
CREATE TABLE info (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE documents (
    doc_id TEXT PRIMARY KEY, source TEXT NOT NULL, title TEXT NOT NULL, content_hash TEXT NOT NULL,
    metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- AUTOINCREMENT: an id is never given twice
    doc_id TEXT NOT NULL REFERENCES documents (doc_id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
    rendering BLOB NOT NULL, embedding BLOB NOT NULL
);
-- What the model was given of chunks that are no more, until their cached segments are discarded.
CREATE TABLE gone (rendering BLOB PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER chunk_gone AFTER DELETE ON chunks BEGIN
    INSERT OR IGNORE INTO gone VALUES (old.rendering, old.title, old.text);
END;
CREATE INDEX chunks_by_document ON chunks (doc_id, ordinal);
CREATE INDEX chunks_by_rendering ON chunks (rendering);
"""


def create(database: Path, store_id: str) -> None:
    """Makes the tables in a new file."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN; {TABLES}")
        connection.executemany(
            "INSERT INTO info VALUES (?, ?)",
            [("version", VERSION), ("store_id", store_id), ("generation", 0)],
        )
        connection.execute("COMMIT")
    finally:
        connection.close()


def connect(database: Path) -> sqlite3.Connection:
    """A connection that waits a minute for other writers; the caller serializes its threads."""
    connection = sqlite3.connect(database, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    return connection


def check(connection: sqlite3.Connection, store_id: str) -> None:
    """Raises StoreDamaged where the database is not that of this store, or its rows contradict each other."""
    info = dict(connection.execute("SELECT name, value FROM info"))
    if info.get("version") != VERSION or info.get("store_id") != store_id:
        raise StoreDamaged(
            f"store.sqlite belongs to store {info.get('store_id')} (version {info.get('version')}), but "
            f"store.json to store {store_id} (version {VERSION}): one of them was copied from elsewhere. "
            f"Put the two files of one store together, or move the folder away and ingest again."
        )
    orphans = connection.execute("SELECT count(*) FROM chunks WHERE doc_id NOT IN (SELECT doc_id FROM documents)")
    if n := orphans.fetchone()[0]:
        raise StoreDamaged(
            f"store.sqlite has {n} chunks without their document: something else has written to it. "
            f"Move the folder away and ingest again."
        )


def n_documents(database: Path) -> int:
    """How many documents a database that may not be one holds; 0 where it has no tables.

    Raises BadInput where it cannot be read now (locked, no permission), StoreDamaged where it never can.
    """
    if not database.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])
    except sqlite3.OperationalError as error:
        if str(error) == "no such table: documents":  # nothing was ever stored
            return 0
        raise BadInput(
            f"{database} is locked or unreadable: {error}. Nothing was changed. Check its permissions and "
            f"whether another program holds it, then try again."
        ) from error
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(f"{database} cannot be read: {error}. Move its folder away and ingest again.") from error


def rendering(title: str, text: str) -> bytes:
    """Equal for two chunks that the model reads as the same segment."""
    return hashlib.sha256(f"{title}\0{text}".encode()).digest()
