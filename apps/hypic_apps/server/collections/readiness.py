"""What of a collection is cached now, which is not what once was; and making again what is not."""

import logging
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypic_apps.server.collections.catalog import Collections
from hypic_apps.server.collections.retriever import opened
from hypic_apps.server.collections.store_pool import StorePool
from hypic_apps.server.errors import ApiError
from hypic_apps.server.ingestion.parse_sandbox import Stopped
from hypic_rag.collections.tenant import Tenant
from hypic_rag.engine import SegmentEngine
from hypic_rag.errors import HypicError
from hypic_rag.retrieval import run_ingest
from hypic_rag.retrieval.ingest import plan_again
from hypic_rag.retrieval.segments import stored_segment
from hypic_rag.retrieval.store import Store, StoredDocument

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Warming:
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)


class Readiness:
    """For any number of threads; every method may block. ``close`` it at the end.

    The keys of chunks are kept, by ids, which are given only once: making them takes the tokenizer.
    """

    def __init__(self, collections: Collections, engine: SegmentEngine):
        self._collections, self._engine = collections, engine
        self._keys: dict[Path, dict[int, Any]] = {}  # of a store's chunks; None of what is no longer than a seam
        self._lock = threading.Lock()
        self._warming: dict[str, _Warming] = {}  # by namespace
        self._is_closing = False
        collections.removal.on_begin.append(self._stop)

    def close(self) -> None:
        self._is_closing = True
        for namespace in list(self._warming):
            self._stop(namespace)

    def passages(self, tenant: Tenant, name: str, file_id: str) -> tuple[str, list[dict[str, Any]]]:
        """Return a file's name and all that it was cut into, in order. Raises NotFound."""
        filename = self._collections.file(tenant, name, file_id)["filename"]
        folder = self._collections.retriever(tenant, name).folder
        if not StorePool.exists(folder):
            return filename, []
        with opened(self._collections.stores, folder) as store:
            found = [
                {"document": n, "title": chunk.title, "page_label": chunk.page_label or None, "text": chunk.text}
                for n, document in enumerate(_of_file(store, file_id))
                for chunk in store.chunks(document.doc_id)
            ]
        return filename, found

    def cached(self, tenant: Tenant, name: str) -> tuple[list[dict[str, Any]], bool]:
        """Count of every file that is ready its segments and those that are cached. Return whether a warming is under
        way, too. Raises NotFound."""
        files = [file["id"] for file in self._collections.files(tenant, name) if file["status"] == "ready"]
        place = self._collections.retriever(tenant, name)
        keys: dict[str, dict[str, Any]] = {file_id: {} for file_id in files}
        if StorePool.exists(place.folder):
            with opened(self._collections.stores, place.folder) as store:
                known = self._known(place.folder, store, self._engine.within(place.namespace))
                of_file = {one.doc_id: str(one.metadata.get("file_id")) for one in store.documents()}
            for doc_id, key in known:
                if key is not None and of_file.get(doc_id) in keys:
                    keys[of_file[doc_id]][key.digest] = key
        with self._lock:
            is_warming = place.namespace in self._warming
        counts = [
            {"file_id": file_id, "n_segments": len(found),
             "n_cached": len(found) - len(self._engine.segments.cold(found.values()))}
            for file_id, found in keys.items()
        ]  # fmt: skip
        return counts, is_warming

    def warm(self, tenant: Tenant, name: str) -> bool:
        """Begin to cache again what is not, unless that is under way. Return whether there is anything to do."""
        place = self._collections.retriever(tenant, name)
        if not StorePool.exists(place.folder) or self._is_closing:
            return False
        with self._lock:
            if place.namespace not in self._warming:
                self._collections.warming.add(place.namespace)
                self._warming[place.namespace] = begun = _Warming()
                begun.thread = threading.Thread(target=self._warm, args=(place.folder, place.namespace, begun.stopped))
                begun.thread.start()
        return True

    def _warm(self, folder: Path, namespace: str, stopped: threading.Event) -> None:
        try:
            with opened(self._collections.stores, folder) as store:
                plan = plan_again(store, self._engine.within(namespace))
                run_ingest(plan, pace=self._collections.pace(stopped))
        except Stopped:
            pass
        except (HypicError, ApiError, OSError) as error:  # say, the collection was deleted meanwhile
            log.warning("a collection was not cached again: %s", error)
        except Exception:
            log.exception("caching a collection again failed")
        finally:
            with self._lock:
                del self._warming[namespace]
                self._collections.warming.discard(namespace)

    def _stop(self, namespace: str) -> None:
        """End the warming of a namespace, and wait until it has ended."""
        with self._lock:
            found = self._warming.get(namespace)
        if found is not None:
            found.stopped.set()
            found.thread.join()

    def _known(self, folder: Path, store: Store, engine: SegmentEngine) -> list[tuple[str, Any]]:
        """Return of every chunk its document and its key."""
        before, now, found = self._keys.get(folder, {}), {}, []
        for chunk in store.chunks():
            if chunk.id in before:
                now[chunk.id] = before[chunk.id]
            else:
                stored = stored_segment(engine, chunk.title, chunk.text)
                now[chunk.id] = stored and stored[1]
            found.append((chunk.doc_id, now[chunk.id]))
        self._keys[folder] = now
        return found


def _of_file(store: Store, file_id: str) -> list[StoredDocument]:
    """Return a file's documents in their order: the numbers in their ids are counted."""
    found = [one for one in store.documents() if one.metadata.get("file_id") == file_id]
    return sorted(found, key=lambda one: [int(part) for part in re.findall(r"\d+", one.doc_id.removeprefix(file_id))])
