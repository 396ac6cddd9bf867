"""Removal without a trace: of a file or a collection, begun at once, finished whatever happens in between.

A row that is marked (``deleting``) is gone for its tenant; it leaves when all that it stood for has left.
"""

import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypic_apps.server.collections.store_pool import StorePool
from hypic_apps.server.errors import ApiError
from hypic_apps.server.ingestion.worker import Jobs
from hypic_rag.collections.database import FINISHED, CollectionDatabase
from hypic_rag.collections.rows import check_known, remove_file
from hypic_rag.collections.tenant import Tenant
from hypic_rag.engine import SegmentEngine
from hypic_rag.errors import HypicError, NoRoom

log = logging.getLogger(__name__)

LINGER_SECONDS = 10.0  # between finding a text for a request and the request's being in the loop
SWEEP_SECONDS = 5.0


class Removal:
    """on_begin: is told of every namespace that will lose texts, and returns when it makes nothing of them any more.
    on_forget: is told of every one that has lost texts."""

    def __init__(
        self,
        folder: Path,
        uploads: Path,
        database: CollectionDatabase,
        stores: StorePool,
        jobs: Jobs,
        engine: SegmentEngine,
        serves: Callable[[str, float], bool],
        folder_of: Callable[[str, str], Path],
    ):
        """serves: whether a request of a namespace that came before a time (time.monotonic) is not yet answered."""
        self._folder, self._uploads, self._database, self._stores = folder, uploads, database, stores
        self._jobs, self._engine, self._serves, self._folder_of = jobs, engine, serves, folder_of
        self.on_begin: list[Callable[[str], None]] = []
        self.on_forget: list[Callable[[str], None]] = []
        self._removing = threading.Lock()
        self._deleted: dict[str, float] = {}  # namespaces with rows in leaving, and when the last came
        self._closing = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_always, name="sweep", daemon=True)

    def start(self) -> None:
        """Sweep now and then, until ``close``."""
        self._sweeper.start()

    def close(self) -> None:
        self._closing.set()
        if self._sweeper.is_alive():
            self._sweeper.join()

    def of_file(self, tenant: Tenant, collection_id: str, file_id: str) -> None:
        """Remove a file that is marked. May be done again."""
        self._jobs.stop(file_id)
        folder = self._folder_of(tenant.id, collection_id)
        engine = self._engine.within(tenant.namespace(collection_id))
        self._begin(engine.namespace)
        with self._removing:
            if StorePool.exists(folder):
                with self._stores.use(folder) as store:
                    remove_file(self._database, store, engine, file_id)
            self._unlink(file_id)
            with self._database.writing() as db:
                db.execute("DELETE FROM files WHERE id = ?", (file_id,))
            self._forgotten(engine.namespace)

    def of_collection(self, tenant: Tenant, collection_id: str) -> None:
        """Remove a collection that is marked. May be done again."""
        with self._database.reading() as db:
            query = "SELECT id FROM files WHERE collection_id = ?"
            files = [row["id"] for row in db.execute(query, (collection_id,))]
        for file_id in files:
            self._jobs.stop(file_id)
            self._unlink(file_id)
        folder = self._folder_of(tenant.id, collection_id)
        engine = self._engine.within(tenant.namespace(collection_id))
        self._begin(engine.namespace)
        with self._removing:
            self._stores.drop(folder)
            try:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)
            except OSError as error:
                raise NoRoom(f"{error.strerror or error}") from error
            engine.forget()
            with self._database.writing() as db:
                db.execute("INSERT OR IGNORE INTO leaving VALUES (?, '')", (engine.namespace,))
                db.execute("DELETE FROM collections WHERE id = ?", (collection_id,))
            self._forgotten(engine.namespace)

    def of_requests(self, tenant: Tenant) -> None:
        """Remove the segments of documents that came in a tenant's requests. May be done again."""
        engine = self._engine.within(tenant.namespace())
        self._begin(engine.namespace)
        with self._removing:
            engine.forget()
            with self._database.writing() as db:
                db.execute("INSERT OR IGNORE INTO leaving VALUES (?, '')", (engine.namespace,))
            self._forgotten(engine.namespace)

    def _begin(self, namespace: str) -> None:
        for tell in self.on_begin:
            tell(namespace)

    def _forgotten(self, namespace: str) -> None:
        self._deleted[namespace] = time.monotonic()
        for tell in self.on_forget:
            tell(namespace)
        self._database.compact()

    def _unlink(self, file_id: str) -> None:
        for path in self._uploads.glob(f"{file_id}.*"):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove what a server that ended had not yet removed; before there are requests."""
        self.sweep(everything=True)
        self.again()
        with self._database.reading() as db:
            query = f"SELECT id FROM files WHERE status NOT IN ({','.join('?' * len(FINISHED))})"
            wanted = {row["id"] for row in db.execute(query, FINISHED)}
            known = {row["id"] for row in db.execute("SELECT id FROM collections")}
        for path in self._uploads.iterdir():
            if path.stem not in wanted or path.suffix in (".part", ".parsed"):
                path.unlink(missing_ok=True)
        for folder in (self._folder / "collections").glob("*/*"):
            if folder.name not in known:  # what is removed leaves the disk before it leaves the database
                log.warning("%s is a collection that server.sqlite does not know: was a copy put in its place?", folder)

    def check(self) -> None:
        """Raise StoreDamaged where the database is not that of the folder's collections."""
        check_known(self._database, self._folder)

    def again(self) -> None:
        """Remove collections and files whose removal has begun; what cannot be removed now is tried again later."""
        with self._database.reading() as db:
            collections = db.execute("SELECT id, tenant FROM collections WHERE deleting").fetchall()
            files = db.execute(
                "SELECT files.id, collection_id, tenant FROM files JOIN collections ON collections.id = collection_id "
                "WHERE status = 'deleting' AND NOT deleting"
            ).fetchall()
        for row in collections:
            self._try(partial(self.of_collection, Tenant(row["tenant"]), row["id"]))
        for row in files:
            self._try(partial(self.of_file, Tenant(row["tenant"]), row["collection_id"], row["id"]))

    def _try(self, remove: Callable[[], None]) -> None:
        """Try to remove one; what it meets does not keep the others."""
        try:
            remove()
        except (ApiError, HypicError, OSError, sqlite3.Error) as error:
            log.warning("what was deleted is not all removed yet: %s", error)

    def sweep(self, everything: bool = False) -> None:
        """Discard once more what requests that were under way may have made again, once they have ended."""
        with self._database.reading() as db:
            rows = db.execute("SELECT namespace, digest FROM leaving").fetchall()
        for namespace in {row["namespace"] for row in rows}:
            until = self._deleted.setdefault(namespace, time.monotonic()) + LINGER_SECONDS
            if not everything and (time.monotonic() < until or self._serves(namespace, until)):
                continue
            digests = [row["digest"] for row in rows if row["namespace"] == namespace]
            self._engine.within(namespace).forget(None if "" in digests else digests)
            with self._database.writing() as db:
                swept = [(namespace, digest) for digest in digests]
                db.executemany("DELETE FROM leaving WHERE namespace = ? AND digest = ?", swept)
            self._deleted.pop(namespace, None)
            for tell in self.on_forget:
                tell(namespace)

    def _sweep_always(self) -> None:
        while not self._closing.wait(SWEEP_SECONDS):
            self._try(self.sweep)
            self._try(self.again)
