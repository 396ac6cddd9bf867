"""The rows of files that an ingestion reads from their folders: made, finished and removed as their documents are.

A file is known by its collection and its path, so that a later run finds its row. It is ``failed`` until all of its
documents are in, so that a server which finds it half done neither shows it nor reads it again.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Any

from hypic_rag.collections.opening import Collection
from hypic_rag.collections.rows import note_making, remove_file, shown_name
from hypic_rag.engine import SegmentEngine
from hypic_rag.retrieval.plan import IngestPlan, PlannedDocument
from hypic_rag.retrieval.readers import SourceDocument
from hypic_rag.retrieval.store import Store, StoredDocument

INTERRUPTED = "its ingestion did not end: run hypic-rag ingest again"
TOLD_FAILURES = 5


@dataclass(frozen=True)
class _File:
    """last: the place of its last document in the plan. is_settled: its row need not be written."""

    path: str
    documents: tuple[PlannedDocument, ...]
    last: int
    error: str | None
    is_settled: bool


class Ledger:
    """Give ``mark`` to the plan, then ``begin``, ``progress`` and ``end`` the run. The server's folder is claimed."""

    def __init__(self, collection: Collection, store: Store, engine: SegmentEngine):
        """engine: within the collection's namespace."""
        self._collection, self._store, self._engine = collection, store, engine
        self._waiting: list[tuple[str, _File]] = []  # in the order in which they will be whole

    def mark(self, document: SourceDocument) -> SourceDocument:
        """Return the document as one of its file, as those that are uploaded are."""
        return replace(document, metadata=document.metadata | self.about(document.metadata["path"]))

    def about(self, path: str) -> dict[str, str]:
        """Return what a document's metadata says of its file."""
        return {"file_id": self.file_id(path), "filename": shown_name(os.path.basename(path))}

    def file_id(self, path: str) -> str:
        """Return the same for the same path of the collection, and what gives no path away."""
        digest = hashlib.sha256("\0".join((self._collection.id, path)).encode("utf-8", "surrogatepass"))
        return f"file-{digest.hexdigest()[:32]}"

    def begin(self, plan: IngestPlan) -> None:
        """Make rows for what is new, and take leave of files whose last documents will go."""
        with self._collection.database.writing() as db:
            query = "SELECT id, status, error FROM files WHERE collection_id = ?"
            rows = {row["id"]: (row["status"], row["error"]) for row in db.execute(query, (self._collection.id,))}
            files = self._files(plan, rows)
            for file_id, file in files.items():
                shown = shown_name(os.path.basename(file.path))
                db.execute(
                    "INSERT INTO files (id, collection_id, filename, bytes, created_at, status, error) "
                    "VALUES (?, ?, ?, ?, ?, 'failed', ?) "
                    "ON CONFLICT (id) DO UPDATE SET status = 'failed', error = excluded.error "
                    "WHERE status = 'deleting'",
                    (file_id, self._collection.id, shown, _size(file), int(time.time()), INTERRUPTED),
                )
                digests = [segment.key.digest for document in file.documents for segment in document.cold]
                note_making(db, self._engine.namespace, file_id, digests)
            going = self._going(plan) - set(files)
            db.executemany("UPDATE files SET status = 'deleting' WHERE id = ?", [(one,) for one in going])
        self._waiting = sorted(files.items(), key=lambda item: item[1].last)

    def progress(self, n_documents: int, lost: Set[str]) -> None:
        """Finish the files whose documents are all among the first so many of the plan. lost: digests of segments that
        were left cold."""
        done = [item for item in self._waiting if item[1].last < n_documents]
        self._waiting = self._waiting[len(done) :]
        unsettled = [item for item in done if not item[1].is_settled]
        if not unsettled:
            return
        with self._collection.database.writing() as db:
            for file_id, file in unsettled:
                changes = {"status": "ready", "error": file.error, **_counts(file, lost)}
                names = ", ".join(f"{name} = ?" for name in changes)
                db.execute(f"UPDATE files SET {names} WHERE id = ?", [*changes.values(), file_id])
                db.execute("DELETE FROM making WHERE file_id = ?", (file_id,))

    def end(self) -> None:
        """Remove what is left of files that are marked as deleted, also by runs before."""
        database, collection_id = self._collection.database, self._collection.id
        with database.reading() as db:
            query = "SELECT id FROM files WHERE collection_id = ? AND status = 'deleting'"
            going = [row["id"] for row in db.execute(query, (collection_id,))]
        for file_id in going:
            remove_file(database, self._store, self._engine, file_id)
            with database.writing() as db:
                db.execute("DELETE FROM files WHERE id = ?", (file_id,))
        if going:
            database.compact()

    def _files(self, plan: IngestPlan, rows: dict[str, tuple[str, str | None]]) -> dict[str, _File]:
        """Describe the files of all documents that were read, by their ids."""
        documents: dict[str, list[PlannedDocument]] = {}
        last: dict[str, int] = {}
        for n, planned in enumerate(plan.documents):
            documents.setdefault(planned.document.source, []).append(planned)
            last[planned.document.source] = n
        lessened = {one.source for one in plan.removed}
        files = {}
        for path, of_file in documents.items():
            file_id, error = self.file_id(path), _error(plan, path)
            is_as_before = all(one.change == "unchanged" and not one.cold for one in of_file) and path not in lessened
            is_settled = is_as_before and rows.get(file_id) == ("ready", error)
            files[file_id] = _File(path, tuple(of_file), last[path], error, is_settled)
        return files

    def _going(self, plan: IngestPlan) -> set[str]:
        """Find the files that will have no document left."""
        removed = {one.doc_id for one in plan.removed}
        staying = {_file_of(one) for one in self._store.documents() if one.doc_id not in removed}
        return set(map(_file_of, plan.removed)) - staying


def _counts(file: _File, lost: Set[str]) -> dict[str, Any]:
    cold = [segment for document in file.documents for segment in document.cold]
    missing = [segment for segment in cold if segment.key.digest in lost]
    n_segments = len({pair for document in file.documents for pair in document.chunks})
    return {
        "bytes": _size(file),
        "n_documents": len(file.documents),
        "n_chunks": sum(len(document.chunks) for document in file.documents),
        "n_segments": n_segments,
        "n_prefilled": n_segments - len(missing),
        "tokens_done": _n_tokens(cold) - _n_tokens(missing),
        "tokens_total": _n_tokens(cold),
    }


def _file_of(document: StoredDocument) -> str:
    return str(document.metadata["file_id"])


def _error(plan: IngestPlan, path: str) -> str | None:
    """Say what of a file could not be read, though other lines of it could."""
    failures = [one for one in plan.failures if one.path == path]
    if not failures:
        return None
    told = [one.reason if one.line is None else f"line {one.line}: {one.reason}" for one in failures[:TOLD_FAILURES]]
    if len(failures) > TOLD_FAILURES:
        told.append(f"and {len(failures) - TOLD_FAILURES} more")
    return f"not all could be read: {'; '.join(told)}"


def _size(file: _File) -> int:
    """Return its bytes; of what is no file, or has vanished since it was read, those of its text."""
    try:
        return os.stat(file.path).st_size
    except (OSError, ValueError):
        return sum(len(text.encode()) for document in file.documents for _, text in document.chunks)


def _n_tokens(segments: Iterable[Any]) -> int:
    return sum(segment.key.n_tokens for segment in segments)
