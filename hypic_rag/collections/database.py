"""server.sqlite: API keys, whose collections there are, their files and how far each of them is; conversations."""

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hypic_rag.errors import NoRoom, StoreDamaged
from hypic_rag.sqlite_file import SqliteFile, is_damage, transaction, what_to_do
from hypic_rag.sqlite_rows import Columns, blob, matching, number, text, text_or_null, whole

FILE = "server.sqlite"
VERSION = 3
TENANT = "[a-z0-9][a-z0-9-]{0,31}"
FINISHED = ("ready", "failed")  # of a file's status
TABLES = """
CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, tenant TEXT, label TEXT NOT NULL,
    created REAL NOT NULL, revoked REAL, expires REAL,
    requests_per_minute INTEGER, tokens_per_day INTEGER  -- NULL: any number
);
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

CONVERSATIONS = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL, words TEXT NOT NULL,  -- words: to be searched
    collection TEXT,  -- its name when it was asked first; null: the model alone
    collection_id TEXT REFERENCES collections (id) ON DELETE SET NULL,
    created_at INTEGER NOT NULL, updated REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS conversations_by_tenant ON conversations (tenant, updated);
CREATE INDEX IF NOT EXISTS conversations_by_collection ON conversations (collection_id);
CREATE TABLE IF NOT EXISTS turns (
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE, turn INTEGER NOT NULL,
    question TEXT NOT NULL, runs TEXT NOT NULL, words TEXT NOT NULL, PRIMARY KEY (conversation_id, turn)
) WITHOUT ROWID;
-- What an answer was made from, apart from it: a passage leaves with its file.
CREATE TABLE IF NOT EXISTS turn_passages (
    conversation_id TEXT NOT NULL, turn INTEGER NOT NULL, run INTEGER NOT NULL, place INTEGER NOT NULL,
    file_id TEXT NOT NULL REFERENCES files (id) ON DELETE CASCADE, passage TEXT NOT NULL,
    PRIMARY KEY (conversation_id, turn, run, place),
    FOREIGN KEY (conversation_id, turn) REFERENCES turns (conversation_id, turn) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS turn_passages_by_file ON turn_passages (file_id);
"""

USAGE = """
CREATE TABLE IF NOT EXISTS usage (
    key_id TEXT NOT NULL, day INTEGER NOT NULL,  -- since 1970, UTC
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL,
    PRIMARY KEY (key_id, day)
) WITHOUT ROWID;
"""
NEW_OF_KEYS = {"expires": "REAL", "requests_per_minute": "INTEGER", "tokens_per_day": "INTEGER"}
"""Columns that version 3 brought; older ones leave them alone."""

ADDED = {
    2: {
        "conversations", "conversations_by_tenant", "conversations_by_collection", "turns", "turn_passages",
        "turn_passages_by_file",
    },
    3: {"usage"},
}  # fmt: skip
"""What each version brought."""
NAMES = {
    "keys", "collections", "collection_by_name", "files", "files_by_collection", "files_by_status", "making", "leaving",
}  # fmt: skip
_id = matching("[a-z0-9-]+")
_tenant = matching(TENANT)
COLUMNS: Columns = {
    "id": _id, "collection_id": _id, "file_id": _id,
    "tenant": _tenant, "owner": lambda value: value is None or _tenant(value),
    "name": text, "filename": text, "error": text_or_null, "created_at": whole, "deleting": whole, "bytes": whole,
    "status": matching("queued|parsing|prefilling|ready|failed|deleting"), "n": whole, "min(n)": whole,
    "n_documents": whole, "n_chunks": whole, "n_segments": whole, "n_prefilled": whole,
    "tokens_done": whole, "tokens_total": whole,
    "namespace": text, "digest": matching("([0-9a-f]{64})?"),
    "conversation_id": _id, "title": text, "collection": text_or_null, "question": text, "runs": text, "words": text,
    "passage": text, "turn": whole, "run": whole, "place": whole, "updated": number, "n_turns": whole,
    "key_id": _id, "day": whole, "requests": whole, "prompt_tokens": whole, "generated_tokens": whole,
    "expires": lambda value: value is None or number(value),
    "requests_per_minute": lambda value: value is None or whole(value),
    "tokens_per_day": lambda value: value is None or whole(value),
    "hash": blob, "label": text, "created": number, "revoked": lambda value: value is None or number(value),
    "exist": whole,
}  # fmt: skip
"""Ids and tenants name files and folders."""


class CollectionDatabase(SqliteFile):
    """Rows answer to their columns' names."""

    def __init__(self, path: Path):
        """Open the database, made where it is missing. Raises NoRoom where it cannot be written,
        StoreDamaged where it cannot be read."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(
            path,
            f"the server's database {path}",
            partial(_told, path),
            columns=COLUMNS,
            made=sqlite3.Row,
            pragmas=("synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"),
            check=_complete,
        )


def _complete(db: sqlite3.Connection) -> None:
    """Make all tables at once: where one is missing it was lost, and with it what it held."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version:
        added = [name for since, brought in ADDED.items() if since <= version for name in brought]
        if missing := NAMES.union(added) - names:
            raise sqlite3.DatabaseError(f"it has no {', no '.join(sorted(missing))}")
    if version >= VERSION:
        return
    try:
        with transaction(db, "BEGIN IMMEDIATE"):
            for statement in _statements(TABLES + CONVERSATIONS + USAGE):
                db.execute(statement)
            there = {row["name"] for row in db.execute("SELECT name FROM pragma_table_info('keys')")}
            for name in NEW_OF_KEYS.keys() - there:
                db.execute(f"ALTER TABLE keys ADD COLUMN {name} {NEW_OF_KEYS[name]}")
            db.execute(f"PRAGMA user_version = {VERSION}")
    except sqlite3.OperationalError:
        if not version:
            raise  # else it can only be read now, and what this version adds is asked for by a server alone


def _told(path: Path, error: Exception) -> Exception:
    if isinstance(error, sqlite3.IntegrityError):
        return error  # for whoever asked: a name or an id that is there already, or no more
    if is_damage(error) or not isinstance(error, sqlite3.OperationalError):
        return StoreDamaged(
            f"{path} is damaged: {error}. Put a copy of it in its place, or move {path.parent} away and send your "
            "files again"
        )
    return NoRoom(f"{path.name}: {error}", what_to_do(path, error))


def _statements(script: str) -> Iterator[str]:
    """Yield statements one by one, since ``executescript`` would commit first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
