"""Files in the background: read, split, embedded and prefilled, while questions are answered."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypic_apps.server.collections.store_pool import StorePool
from hypic_apps.server.errors import ApiError
from hypic_apps.server.ingestion import parse_sandbox
from hypic_apps.server.ingestion.parse_sandbox import NotRead, ParseLimits, Stopped
from hypic_apps.server.observability.metrics import Metrics
from hypic_rag.atomic_write import clear_away
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.collections.rows import note_making, remove_file
from hypic_rag.collections.tenant import Tenant
from hypic_rag.config import format_bytes
from hypic_rag.engine import SegmentEngine
from hypic_rag.errors import HypicError
from hypic_rag.locks import FairLock
from hypic_rag.retrieval import plan_documents, run_ingest
from hypic_rag.retrieval.ingest import IngestPlan, IngestProgress
from hypic_rag.retrieval.readers import SourceDocument, title_of_file
from hypic_rag.retrieval.readers.pages import from_place, n_solid
from hypic_rag.retrieval.store import Store
from hypic_rag.retrieval.throttle import Throttle

log = logging.getLogger(__name__)

WORKERS = 4  # tenants whose files are taken at once; one file of a tenant at a time
BITE_SECONDS = 0.25  # that a question may have to wait for what is being ingested; at least a segment, a text
PATIENCE = 3.0  # while requests are under way, ingestion pauses so many times as long as it works
PART_CHARACTERS = 20_000  # a longer document is split, embedded and stored in parts of as many
PARSED = ".parsed"
COUNTS = ("n_documents", "n_chunks", "n_segments", "n_prefilled", "tokens_done", "tokens_total")


@dataclass(eq=False)
class IngestJob:
    """A file and what of its row has changed since it was read."""

    id: str
    filename: str
    collection_id: str
    tenant: Tenant
    changes: dict[str, Any] = field(default_factory=dict)
    n_warm: int = 0  # segments that were in the cache before
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def namespace(self) -> str:
        return self.tenant.namespace(self.collection_id)


class IngestTurns:
    """One bite of ingestion at a time, whoever it is of; a minority of the time while ``is_busy``."""

    def __init__(self, is_busy: Callable[[], bool]):
        self._is_busy = is_busy
        self._lock = FairLock("the server's queue of ingestions")
        self._ended, self._seconds = 0.0, 0.0  # of the last bite

    @contextlib.contextmanager
    def turn(self, stopped: threading.Event) -> Iterator[None]:
        """Wait for a turn and hold it inside. Raises Stopped, also while it waits."""
        with self._lock:
            if self._is_busy():  # then for the whole pause: the next request comes as soon as the last has ended
                stopped.wait(max(0.0, self._ended + PATIENCE * self._seconds - time.monotonic()))
            if stopped.is_set():
                raise Stopped
            began = time.monotonic()
            try:
                yield
            finally:
                self._ended = time.monotonic()
                self._seconds = self._ended - began


class Jobs:
    """Takes up files in the order of their arrival, of the tenant first who was served longest ago."""

    def __init__(
        self,
        database: CollectionDatabase,
        stores: StorePool,
        engine: SegmentEngine,
        uploads: Path,
        folder_of: Callable[[str, str], Path],
        limits: ParseLimits,
        is_busy: Callable[[], bool],
        metrics: Metrics,
    ):
        """folder_of: of a tenant's collection, by their ids. uploads: where the files lie until they are ready."""
        self._database, self._stores, self._engine, self._uploads = database, stores, engine, uploads
        self._folder_of, self._limits = folder_of, limits
        self._turns, self._metrics = IngestTurns(is_busy), metrics
        self._changed = threading.Condition()
        self._running: dict[str, IngestJob] = {}
        self._unrecorded: dict[str, IngestJob] = {}  # ended, but the disk would not take it
        self._served: dict[str, int] = {}  # tenant -> the number of its last turn
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"ingest-{i}", daemon=True) for i in range(WORKERS)]

    def start(self) -> None:
        """Begin again what a server that ended had begun, and start the threads."""
        with self._database.writing() as db:
            db.execute("UPDATE files SET status = 'queued' WHERE status IN ('parsing', 'prefilling')")
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; files under way are taken up again by the next server. Blocks for a bite."""
        with self._changed:
            self._closing = True
            for job in self._running.values():
                job.stopped.set()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def notice(self) -> None:
        """Wake the threads: there are new files."""
        with self._changed:
            self._changed.notify_all()

    def stop(self, file_id: str) -> None:
        """End the work on a file that is marked as deleted, and wait until it has ended."""
        with self._changed:
            if job := self._running.get(file_id):
                job.stopped.set()
            self._changed.wait_for(lambda: file_id not in self._running)
            self._unrecorded.pop(file_id, None)

    def changes(self, file_id: str) -> dict[str, Any]:
        """Return what of a file's row is newer than its row."""
        job = self._running.get(file_id) or self._unrecorded.get(file_id)
        return dict(job.changes) if job else {}

    def pace(self, stopped: threading.Event) -> Throttle:
        """Return how work that nobody waits for takes turns with what is ingested; it ends with Stopped."""
        return Throttle(BITE_SECONDS, lambda: self._turns.turn(stopped))

    def upload(self, file_id: str) -> Path | None:
        """Return where its bytes lie, as long as it is not ready."""
        found = [path for path in self._uploads.glob(f"{file_id}.*") if path.suffix != PARSED]
        return found[0] if found else None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._ingest(job)
            except Stopped:
                if not self._closing:
                    self._metrics.ingested("cancelled")
            except NotRead as error:
                self._fail(job, str(error))
            except (HypicError, ApiError, OSError) as error:
                self._fail(job, str(error))
            except Exception:
                log.exception("ingesting %s failed", job.id)
                self._fail(job, "the server could not ingest it; its log says why")
            finally:
                clear_away(self._uploads / f"{job.id}{PARSED}")
                with self._changed:
                    del self._running[job.id]
                    self._changed.notify_all()

    def _next(self) -> IngestJob | None:
        """Return the next job; None once the server closes."""
        with self._changed:
            while not self._closing:
                try:
                    job = self._waiting()
                except (ApiError, HypicError):
                    log.exception("the queue of files cannot be read")
                    job = None
                if job is not None:
                    self._running[job.id] = job
                    self._served[job.tenant.id] = max(self._served.values(), default=0) + 1
                    return job
                self._changed.wait(5.0)
            return None

    def _waiting(self) -> IngestJob | None:
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT files.id, filename, collection_id, tenant, min(n) FROM files JOIN collections "
                "ON collections.id = collection_id WHERE status = 'queued' AND NOT deleting "
                f"AND files.id NOT IN ({','.join('?' * len(self._unrecorded))}) GROUP BY tenant",
                list(self._unrecorded),
            ).fetchall()
        busy = {job.tenant.id for job in self._running.values()}
        rows = [row for row in rows if row["tenant"] not in busy]
        if not rows:
            return None
        row = min(rows, key=lambda row: (self._served.get(row["tenant"], 0), row["min(n)"]))
        return IngestJob(row["id"], row["filename"], row["collection_id"], Tenant(row["tenant"]))

    def _ingest(self, job: IngestJob) -> None:
        self._record(job, status="parsing")
        upload = self.upload(job.id)
        if upload is None:
            raise NotRead("its bytes are no longer there. Send it again")
        parsed = self._uploads / f"{job.id}{PARSED}"
        unread = parse_sandbox.parse(upload, parsed, self._limits, job.stopped)
        pace = self.pace(job.stopped)
        engine = self._engine.within(job.namespace)
        with self._stores.use(self._folder_of(job.tenant.id, job.collection_id), create=True) as store:
            plan = self._plan(job, store, engine, parsed, pace)
            clear_away(parsed)
            report = run_ingest(plan, on_progress=lambda progress: self._told(job, progress), pace=pace)
        self._metrics.prefilled(report.prefill_tokens, report.n_prefilled)
        self._finish(job, status="ready", error=f"not all could be read: {unread}" if unread else None)
        self._metrics.ingested("ready")

    def _plan(self, job: IngestJob, store: Store, engine: SegmentEngine, parsed: Path, pace: Throttle) -> IngestPlan:
        read: set[str] = set()

        def documents() -> Iterator[SourceDocument]:
            for n, (title, text, metadata, pages) in enumerate(parse_sandbox.documents(parsed), 1):
                kind = str(metadata.get("format"))
                title = title or (title_of_file(job.filename, kind) if kind != "jsonl" else "")
                metadata |= {"path": job.id, "file_id": job.id, "filename": job.filename}
                read.add(str(n))
                for i, part in enumerate(parts(text)):
                    yield SourceDocument(f"{job.id}/{n}.{i}", title, part, metadata, pages)
                    pages = from_place(pages, n_solid(part))

        plan = plan_documents(store, engine, documents(), job.id, pace)
        pairs = {pair for document in plan.documents for pair in document.chunks}
        digests = [segment.key.digest for document in plan.documents for segment in document.cold]
        with self._database.writing() as db:
            note_making(db, job.namespace, job.id, digests)
        job.n_warm = len(pairs) - plan.n_segments
        if not plan.fits:
            need, room = format_bytes(plan.forecast_bytes), format_bytes(plan.room_bytes)
            log.warning(
                "the segments of file %s take %s, and %s are left of disk_budget: what has no room, or makes room, is "
                "computed when it is asked for. Set a larger disk_budget", job.id, need, room,
            )  # fmt: skip
        self._record(
            job,
            status="prefilling",
            n_documents=len(read),
            n_chunks=plan.n_chunks,
            n_segments=len(pairs),
            n_prefilled=job.n_warm,
            tokens_total=plan.prefill_tokens,
        )
        return plan

    def _told(self, job: IngestJob, progress: IngestProgress) -> None:
        done = job.n_warm + progress.n_prefilled
        job.changes |= {"tokens_done": progress.n_tokens, "n_prefilled": done}

    def _take_back(self, job: IngestJob) -> None:
        """Take a file back out: it is in the collection whole, or not at all."""
        folder = self._folder_of(job.tenant.id, job.collection_id)
        if StorePool.exists(folder):
            with contextlib.suppress(HypicError, ApiError), self._stores.use(folder) as store:
                remove_file(self._database, store, self._engine.within(job.namespace), job.id)

    def _record(self, job: IngestJob, **changes: object) -> None:
        """Record changes in the row, unless the file is being deleted. Raises NoRoom."""
        job.changes |= changes
        names = ", ".join(f"{name} = ?" for name in changes)
        with self._database.writing() as db:
            statement = f"UPDATE files SET {names} WHERE id = ? AND status != 'deleting'"
            db.execute(statement, [*changes.values(), job.id])

    def _finish(self, job: IngestJob, **changes: object) -> None:
        """Record the end, then remove the bytes: they have served, but not before that is recorded."""
        clear_away(self._uploads / f"{job.id}{PARSED}")
        counts = {name: job.changes[name] for name in COUNTS if name in job.changes}
        with self._database.writing() as db:
            self._record(job, **changes, **counts)
            db.execute("DELETE FROM making WHERE file_id = ?", (job.id,))
        upload = self.upload(job.id)
        if upload is not None:
            clear_away(upload)  # else the next start does

    def _fail(self, job: IngestJob, reason: str) -> None:
        log.warning("file %s was not ingested: %s", job.id, reason)
        self._metrics.ingested("failed")
        job.changes |= dict.fromkeys(COUNTS, 0)
        try:
            self._take_back(job)
            self._finish(job, status="failed", error=reason)
        except (ApiError, HypicError, OSError, sqlite3.Error):
            with self._changed:
                self._unrecorded[job.id] = job


def parts(text: str) -> Iterator[str]:
    """Cut a text in pieces of at most PART_CHARACTERS, where it pauses."""
    at = 0
    while at < len(text):
        end = at + PART_CHARACTERS
        if end < len(text):
            for pause in ("\n\n", "\n", ". ", " "):
                found = text.rfind(pause, at + PART_CHARACTERS // 2, end)
                if found >= 0:
                    end = found + len(pause)
                    break
        if text[at:end].strip():
            yield text[at:end]
        at = end
