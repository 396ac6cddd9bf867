"""The collections of tenants: their files, where they are asked, and how they are removed without a trace."""

import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hypic_apps.server.chat.engine_loop import EngineLoop
from hypic_apps.server.collections.deletion import Removal
from hypic_apps.server.collections.retriever import CollectionRetriever, opened
from hypic_apps.server.collections.store_pool import StorePool
from hypic_apps.server.errors import ApiError
from hypic_apps.server.ingestion.parse_sandbox import ParseLimits
from hypic_apps.server.ingestion.uploads import Upload
from hypic_apps.server.ingestion.worker import Jobs
from hypic_apps.server.observability.metrics import Metrics
from hypic_rag.atomic_write import clear_away
from hypic_rag.collections import rows
from hypic_rag.collections.claim import claimed
from hypic_rag.collections.database import FINISHED, CollectionDatabase
from hypic_rag.collections.tenant import Tenant
from hypic_rag.config import Settings
from hypic_rag.engine import SegmentEngine
from hypic_rag.rag import SearchOptions
from hypic_rag.retrieval import Embedder
from hypic_rag.retrieval.readers.document import clean

log = logging.getLogger(__name__)

FILE_FIELDS = (
    "id", "filename", "bytes", "created_at", "status", "error", "n_documents", "n_chunks", "n_segments", "n_prefilled",
    "tokens_done", "tokens_total",
)  # fmt: skip


HINTS = {
    "collection": "GET /v1/collections lists yours",
    "file": "GET /v1/collections/NAME/files lists a collection's",
}


class NotFound(ApiError):
    def __init__(self, kind: str, name: str):
        super().__init__(404, f"there is no {kind} {name[:80]!r}: {HINTS[kind]}", code=f"{kind}_not_found", param=kind)


class Collections:
    """For any number of threads; every method may block. ``start`` it, and ``close`` it at the end.

    Raises StoreDamaged where the database is not that of the collections in the folder.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        engine: SegmentEngine,
        embedder: Embedder,
        loop: EngineLoop,
        database: CollectionDatabase,
        metrics: Metrics,
    ):
        self.uploads = folder / "uploads"
        self.max_upload = settings.max_upload
        self._folder, self._engine, self._embedder, self._loop, self._database = (
            folder, engine, embedder, loop, database
        )  # fmt: skip
        self._metrics, self._options = metrics, SearchOptions.of(settings)
        self.warming: set[str] = set()  # namespaces of which something is being cached again
        self.stores = self._stores = StorePool(engine, embedder, settings.chunk_tokens)
        self._jobs = Jobs(
            database, self._stores, engine, self.uploads, self._folder_of, ParseLimits.of(settings),
            is_busy=lambda: loop.n_running + loop.n_waiting > 0, metrics=metrics,
        )  # fmt: skip
        self.pace = self._jobs.pace
        self.removal = Removal(
            folder, self.uploads, database, self._stores, self._jobs, engine,
            lambda namespace, until: namespace in self.warming or loop.serves(namespace, until), self._folder_of,
        )  # fmt: skip
        self._lock: IO[str] | None = None
        self.removal.check()

    def start(self) -> None:
        """Finish what a server that ended had begun. Raises BadInput where another server is at work here."""
        self.uploads.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = claimed(self._folder, "serve")
        if removed := self._engine.cache.gc():  # of a server that was killed while it wrote
            log.info("%d segments that were half written or half removed are gone", len(removed))
        self.removal.finish()
        self._jobs.start()
        self.removal.start()

    def close(self) -> None:
        self.removal.close()
        self._jobs.close()
        self._stores.close()
        if self._lock is not None:
            self._lock.close()

    # collections

    def create(self, tenant: Tenant, name: str) -> dict[str, Any]:
        if why := rows.bad_name(name):
            raise ApiError(400, why, param="name")
        try:
            with self._database.writing() as db:
                rows.make(db, tenant.id, name)
        except sqlite3.IntegrityError:
            raise ApiError(409, f"there is a collection {name!r} already", code="collection_exists") from None
        return self.get(tenant, name)

    def all(self, tenant: Tenant) -> list[dict[str, Any]]:
        with self._database.reading() as db:
            query = "SELECT * FROM collections WHERE tenant = ? AND NOT deleting ORDER BY created_at, name"
            found = db.execute(query, (tenant.id,)).fetchall()
            files = [self._files(db, row["id"]) for row in found]
        n_bytes = self._n_bytes()
        return [
            _collection(row, of_row, n_bytes.get(tenant.namespace(row["id"]), 0))
            for row, of_row in zip(found, files, strict=True)
        ]

    def names(self, tenant: Tenant) -> list[tuple[str, int]]:
        """List name and time of making of each collection, the oldest first."""
        with self._database.reading() as db:
            query = (
                "SELECT name, created_at FROM collections WHERE tenant = ? AND NOT deleting ORDER BY created_at, name"
            )
            return [(row["name"], row["created_at"]) for row in db.execute(query, (tenant.id,))]

    def get(self, tenant: Tenant, name: str) -> dict[str, Any]:
        with self._database.reading() as db:
            row = _found(db, tenant, name)
            files = self._files(db, row["id"])
        return _collection(row, files, self._n_bytes().get(tenant.namespace(row["id"]), 0))

    def rename(self, tenant: Tenant, name: str, new: str) -> dict[str, Any]:
        """Rename a collection. Raises NotFound, ApiError for a name that cannot be one or that another has."""
        if why := rows.bad_name(new):
            raise ApiError(400, why, param="name")
        try:
            with self._database.writing() as db:
                row = _found(db, tenant, name)
                db.execute("UPDATE collections SET name = ? WHERE id = ?", (new, row["id"]))
        except sqlite3.IntegrityError:
            raise ApiError(409, f"there is a collection {new!r} already", code="collection_exists") from None
        return self.get(tenant, new)

    def name_of(self, tenant: Tenant, collection_id: str) -> str:
        """Return a collection's name. Raises NotFound."""
        with self._database.reading() as db:
            query = "SELECT name FROM collections WHERE tenant = ? AND id = ? AND NOT deleting"
            row = db.execute(query, (tenant.id, clean(collection_id))).fetchone()
        if row is None:
            raise NotFound("collection", collection_id)
        return str(row["name"])

    def delete(self, tenant: Tenant, name: str) -> str:
        """Delete a collection and return its id. From here on it is gone for its tenant, whatever happens; a server
        that is killed meanwhile removes the rest when it starts again."""
        with self._database.writing() as db:
            row = _found(db, tenant, name)
            db.execute("UPDATE collections SET deleting = 1 WHERE id = ?", (row["id"],))
        self.removal.of_collection(tenant, row["id"])
        return str(row["id"])

    def retriever(self, tenant: Tenant, name: str) -> CollectionRetriever:
        """Make a collection's retriever. Raises NotFound."""
        with self._database.reading() as db:
            found = str(_found(db, tenant, name)["id"])
        folder, namespace = self._folder_of(tenant.id, found), tenant.namespace(found)
        return CollectionRetriever(found, folder, namespace, self._stores, self._database, self._options)

    # files

    def check(self, tenant: Tenant, name: str) -> None:
        """Raise NotFound where there is no such collection."""
        with self._database.reading() as db:
            _found(db, tenant, name)

    def add(self, tenant: Tenant, name: str, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
        """Take files in that lie in ``uploads``: they are the collection's from here on, or are removed."""
        try:
            with self._database.writing() as db:
                collection = _found(db, tenant, name)
                db.executemany(
                    "INSERT INTO files (id, collection_id, filename, bytes, created_at) VALUES (?, ?, ?, ?, ?)",
                    [(one.id, collection["id"], one.filename, one.nbytes, int(time.time())) for one in uploads],
                )
        except BaseException:
            for upload in uploads:
                clear_away(upload.path)
            raise
        for upload in uploads:
            self._metrics.uploaded(upload.nbytes)
        self._jobs.notice()
        return [self.file(tenant, name, upload.id) for upload in uploads]

    def files(self, tenant: Tenant, name: str) -> list[dict[str, Any]]:
        with self._database.reading() as db:
            return self._files(db, _found(db, tenant, name)["id"])

    def file(self, tenant: Tenant, name: str, file_id: str) -> dict[str, Any]:
        with self._database.reading() as db:
            return self._file(_found_file(db, tenant, name, file_id))

    def delete_file(self, tenant: Tenant, name: str, file_id: str) -> None:
        """Delete a file, as ``delete`` does a collection."""
        with self._database.reading() as db:
            row = _found_file(db, tenant, name, file_id)
        folder = self._folder_of(tenant.id, row["collection_id"])
        if StorePool.exists(folder):
            with opened(self._stores, folder):  # refused before anything is marked, where it cannot be opened
                pass
        with self._database.writing() as db:
            row = _found_file(db, tenant, name, file_id)
            db.execute("UPDATE files SET status = 'deleting' WHERE id = ?", (file_id,))
        self.removal.of_file(tenant, row["collection_id"], file_id)

    # rows

    def _folder_of(self, tenant_id: str, collection_id: str) -> Path:
        return rows.folder_of(self._folder, tenant_id, collection_id)

    def _files(self, db: sqlite3.Connection, collection_id: str) -> list[dict[str, Any]]:
        query = "SELECT * FROM files WHERE collection_id = ? AND status != 'deleting' ORDER BY n"
        return [self._file(row) for row in db.execute(query, (collection_id,)).fetchall()]

    def _file(self, row: sqlite3.Row) -> dict[str, Any]:
        changes = self._jobs.changes(row["id"]) if row["status"] not in FINISHED else {}
        return {"object": "file", **{name: changes.get(name, row[name]) for name in FILE_FIELDS}}

    def _n_bytes(self) -> dict[str, int]:
        disk = self._engine.cache.disk
        return {} if disk is None else {name: nbytes for name, (_, nbytes) in disk.by_namespace().items()}


def _found(db: sqlite3.Connection, tenant: Tenant, name: str) -> sqlite3.Row:
    row = rows.find(db, tenant.id, name)
    if row is None:
        raise NotFound("collection", name)
    return row


def _found_file(db: sqlite3.Connection, tenant: Tenant, name: str, file_id: str) -> sqlite3.Row:
    query = "SELECT * FROM files WHERE collection_id = ? AND id = ? AND status != 'deleting'"
    row: sqlite3.Row | None = db.execute(query, (_found(db, tenant, name)["id"], clean(file_id))).fetchone()
    if row is None:
        raise NotFound("file", file_id)
    return row


def _collection(row: sqlite3.Row, files: Sequence[dict[str, Any]], nbytes: int) -> dict[str, Any]:
    n_done = sum(file["status"] in FINISHED for file in files)
    total = {
        name: sum(file[name] for file in files) for name in ("n_documents", "n_chunks", "tokens_done", "tokens_total")
    }
    return {
        "id": row["id"],
        "object": "collection",
        "name": row["name"],
        "created_at": row["created_at"],
        "n_files": len(files),
        "n_documents": total["n_documents"],
        "n_chunks": total["n_chunks"],
        "bytes": nbytes,
        "status": "ready" if n_done == len(files) else "working",
        "progress": {
            "n_done": n_done,
            "n_failed": sum(file["status"] == "failed" for file in files),
            "n_total": len(files),
            "tokens_done": total["tokens_done"],
            "tokens_total": total["tokens_total"],
        },
    }
