"""The tables of store.sqlite."""

import contextlib
import sqlite3
from pathlib import Path

from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.paths import exists
from hypic_rag.retrieval import lexical
from hypic_rag.sqlite_file import DAMAGE_ERRORS, connect, connect_read_only, is_damage, what_to_do
from hypic_rag.sqlite_rows import Columns, blob, check_rows, text, whole

VERSIONS = (1, 2)  # the first has no seals, see rows.py
# Beside these, ``chunks.page_label`` is there from the first change by a version that knows of pages: see rows.py.
PRAGMAS = ("foreign_keys = ON", "secure_delete = ON")  # what is deleted is overwritten
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
NAMES = {"info", "documents", "chunks", "gone", "chunk_gone", "chunks_by_document", "chunks_by_rendering"}
COLUMNS: Columns = {
    "doc_id": text, "source": text, "title": text, "content_hash": text, "metadata": text,
    "id": whole, "ordinal": whole, "text": text, "rendering": blob, "embedding": blob, "page_label": text,
    "name": text, "value": lambda value: isinstance(value, int | str), "generation": whole,
    "n_documents": whole, "n_chunks": whole,
}  # fmt: skip


def create(database: Path, store_id: str) -> None:
    """Make the tables in a new file."""
    with contextlib.closing(connect(database)) as connection:
        connection.executescript(f"BEGIN; {TABLES}")
        add_page_labels(connection)
        lexical.make_whole(connection)
        connection.executemany(
            "INSERT INTO info VALUES (?, ?)",
            [("version", VERSIONS[-1]), ("store_id", store_id), ("generation", 0)],
        )
        connection.execute("COMMIT")


def check(connection: sqlite3.Connection, store_id: str) -> int:
    """Check the database and return its version. Raises StoreDamaged where it is not that of this store, or
    its rows contradict each other."""
    if missing := NAMES - {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}:
        raise sqlite3.DatabaseError(f"it has no {', no '.join(sorted(missing))}")
    info = dict(connection.execute("SELECT name, value FROM info"))
    if info.get("version") not in VERSIONS or info.get("store_id") != store_id:
        raise StoreDamaged(
            f"store.sqlite belongs to store {info.get('store_id')} (version {info.get('version')}), but "
            f"store.json to store {store_id} (version {VERSIONS[-1]}): one of them was copied from elsewhere. "
            f"Put the two files of one store together, or move the folder away and ingest again."
        )
    orphans = connection.execute("SELECT count(*) FROM chunks WHERE doc_id NOT IN (SELECT doc_id FROM documents)")
    if n := orphans.fetchone()[0]:
        raise StoreDamaged(
            f"store.sqlite has {n} chunks without their document: something else has written to it. "
            f"Move the folder away and ingest again."
        )
    return int(info["version"])


def has_page_labels(connection: sqlite3.Connection) -> bool:
    """Tell whether chunks have labels of their pages."""
    query = "SELECT count(*) FROM pragma_table_info('chunks') WHERE name = 'page_label'"
    return bool(connection.execute(query).fetchone()[0])


def add_page_labels(connection: sqlite3.Connection) -> None:
    """Make room for them where there is none. Programs that do not know them read and write the table as before."""
    if not has_page_labels(connection):
        connection.execute("ALTER TABLE chunks ADD COLUMN page_label TEXT NOT NULL DEFAULT ''")


def generation(connection: sqlite3.Connection) -> int:
    """Read the number that rises with every change."""
    found = connection.execute("SELECT value AS generation FROM info WHERE name = 'generation'").fetchone()
    if found is None:
        raise sqlite3.DatabaseError("it has no generation")
    return int(found[0])


def n_documents(database: Path) -> int:
    """Count the documents that a database holds which may not be one; 0 where it has no tables.

    Raises BadInput where it cannot be read now (locked, no permission), StoreDamaged where it never can.
    """
    if not exists(database):
        return 0
    try:
        with contextlib.closing(connect_read_only(database)[0]) as connection:
            check_rows(connection, COLUMNS)
            return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])
    except DAMAGE_ERRORS as error:
        if str(error) == "no such table: documents":  # nothing was ever stored
            return 0
        if not is_damage(error) and isinstance(error, sqlite3.OperationalError):
            raise BadInput(
                f"{database} cannot be read: {error}. Nothing was changed. {what_to_do(database, error)}."
            ) from error
        raise StoreDamaged(f"{database} is damaged: {error}. Move its folder away and ingest again.") from error
