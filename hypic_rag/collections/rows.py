"""Collections and their files as rows of server.sqlite: found, made, searched, taken out. Imports no torch."""

import re
import sqlite3
import time
import unicodedata
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.errors import StoreDamaged
from hypic_rag.retrieval.manifest import FILE as STORE
from hypic_rag.retrieval.readers.document import clean

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.rag.passage import Passage
    from hypic_rag.retrieval.store import Store

NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,64}")
MOST_NAME = 200  # characters


def folder_of(server: Path, tenant_id: str, collection_id: str) -> Path:
    """Return where a collection's store lies."""
    return server / "collections" / tenant_id / collection_id


def bad_name(name: str) -> str:
    """Say what is wrong with a collection's name, or ""."""
    if NAME.fullmatch(name):
        return ""
    return f"{name[:80]!r} is no name for a collection: use up to 64 letters, digits, dots, _ and -"


def shown_name(name: str) -> str:
    """Return what is shown of a file's name, in which a backslash may stand."""
    shown = "".join(c for c in unicodedata.normalize("NFC", name) if unicodedata.category(c)[0] != "C").strip()
    stem, dot, suffix = shown.rpartition(".")
    if dot and len(suffix) < 10:
        return f"{stem[: MOST_NAME - len(suffix) - 1]}.{suffix}"
    return shown[:MOST_NAME]


def find(db: sqlite3.Connection, tenant_id: str, name: str) -> sqlite3.Row | None:
    """Return a tenant's collection by its name."""
    query = "SELECT * FROM collections WHERE tenant = ? AND name = ? AND NOT deleting"
    row: sqlite3.Row | None = db.execute(query, (tenant_id, clean(name))).fetchone()
    return row


def make(db: sqlite3.Connection, tenant_id: str, name: str) -> str:
    """Return the id of a new collection. Raises sqlite3.IntegrityError where the tenant has one of this name."""
    made = f"col-{uuid.uuid4().hex}"
    db.execute(
        "INSERT INTO collections (id, tenant, name, created_at) VALUES (?, ?, ?, ?)",
        (made, tenant_id, name, int(time.time())),
    )
    return made


def searchable(database: CollectionDatabase, collection_id: str, passages: Iterable["Passage"]) -> list["Passage"]:
    """Return those of files that are whole, or coming to be, and not deleted."""
    with database.reading() as db:
        query = "SELECT id FROM files WHERE collection_id = ? AND status NOT IN ('deleting', 'failed')"
        here = {row["id"] for row in db.execute(query, (collection_id,))}
    return [one for one in passages if one.metadata["file_id"] in here]


def sums(db: sqlite3.Connection, collection_id: str) -> dict[str, int]:
    """Return how many files a collection has, how many of them are whole, and their documents."""
    query = "SELECT status, n_documents FROM files WHERE collection_id = ? AND status != 'deleting'"
    files = db.execute(query, (collection_id,)).fetchall()
    return {
        "n_files": len(files),
        "n_ready": sum(row["status"] == "ready" for row in files),
        "n_documents": sum(row["n_documents"] for row in files),
    }


def note_making(db: sqlite3.Connection, namespace: str, file_id: str, digests: Sequence[str]) -> None:
    """Note segments before they are made for a file: should it be deleted halfway, they go with it."""
    db.executemany("INSERT OR IGNORE INTO making VALUES (?, ?)", [(file_id, digest) for digest in digests])
    leaving = [(namespace, digest) for digest in digests]
    db.executemany("DELETE FROM leaving WHERE namespace = ? AND digest = ?", leaving)


def remove_file(database: CollectionDatabase, store: "Store", engine: "SegmentEngine", file_id: str) -> None:
    """Remove a file's documents from the store, with their vectors and segments, whole or partly there. Raises NoRoom,
    and what the store raises; it may be done again."""
    from hypic_rag.retrieval.segments import stored_segment

    for document in store.documents():
        if document.metadata.get("file_id") == file_id:
            store.remove_document(document.doc_id)
    gone = store.gone()
    keys = [stored[1] for pair in gone if (stored := stored_segment(engine, *pair))]
    with database.writing() as db:
        digests = {key.digest for key in keys}
        digests |= {row["digest"] for row in db.execute("SELECT digest FROM making WHERE file_id = ?", (file_id,))}
        rows = [(engine.namespace, digest) for digest in digests]
        db.executemany("INSERT OR IGNORE INTO leaving VALUES (?, ?)", rows)
    engine.forget(digests)
    store.forget_gone(gone)
    store.compact()


def check_known(database: CollectionDatabase, server: Path) -> None:
    """Raise StoreDamaged where there are collections and the database knows none: it is another one, and what it does
    not know must not be deleted for that."""
    with database.reading() as db:
        n_known = db.execute("SELECT count(*) FROM collections").fetchone()[0]
    if not n_known and (lost := list((server / "collections").glob(f"*/*/{STORE}"))):
        raise StoreDamaged(
            f"{server / 'collections'} has {len(lost)} collections, but {database.path.name} knows "
            f"none: it was lost, or is another. Put it back, or move {server} away and send your files again"
        )
