"""A store becomes a collection: documents and vectors are copied, segments get keys of the collection's namespace.

A segment's tensors are computed from its tokens, the model and the policy; the namespace is in its key alone. So what
the store's cache has, encoded as it lies there, is put under the new key bit for bit. What it has not is prefilled by
the next ingestion, or when it is first asked for.
"""

from dataclasses import dataclass, replace

from hypic_rag.cache import DiskTier, Entry
from hypic_rag.collections.ledger import Ledger
from hypic_rag.engine import SegmentEngine
from hypic_rag.engine.segment_manager import ColdSegment
from hypic_rag.retrieval.plan import IngestPlan, PlannedDocument
from hypic_rag.retrieval.segments import cold_segments, file_bytes, room_bytes
from hypic_rag.retrieval.store import Store


@dataclass(frozen=True)
class Adopted:
    """Documents: copied, of files; n_there: that the collection had before, which stay as they are there. Segments:
    n_copied, n_cold (will be prefilled when they are asked for)."""

    n_documents: int
    n_files: int
    n_there: int
    n_copied: int
    n_cold: int


def adopt(source: Store, segments: DiskTier, store: Store, engine: SegmentEngine, ledger: Ledger) -> Adopted:
    """Copy what ``source`` has into ``store``, a document at a time; killed, the next run goes on.

    segments: of the source, which is of the engine's model; nothing there changes. engine: within the collection's
    namespace.
    """
    there = {document.doc_id for document in store.documents()}
    seen: set[str] = set()
    planned, n_there = [], 0
    for old in source.documents():
        if old.doc_id in there:
            n_there += 1
            continue
        document = replace(old, metadata=old.metadata | ledger.about(old.source))
        stored = source.chunks(old.doc_id)
        chunks = tuple((chunk.title, chunk.text) for chunk in stored)
        page_labels = tuple(chunk.page_label for chunk in stored)
        cold = tuple(cold_segments(engine, chunks, seen))
        planned.append(PlannedDocument(document, "new", chunks, tuple(dict.fromkeys(chunks)), cold, page_labels))
    room = room_bytes(engine.cache, store.folder)
    ledger.begin(IngestPlan(store, engine, tuple(planned), (), (), (), room))
    n_copied, lost = 0, set[str]()
    for n, one in enumerate(planned, 1):
        for segment in one.cold:
            copied = room_bytes(engine.cache, store.folder) >= file_bytes(segment) and _copied(
                segment, segments, engine
            )
            n_copied += copied
            if not copied:
                lost.add(segment.key.digest)
        store.swap_document(one.document, one.chunks, source.vectors(one.document.doc_id), one.page_labels)
        ledger.progress(n, lost)
    ledger.end()
    n_files = len({one.document.source for one in planned})
    return Adopted(len(planned), n_files, n_there, n_copied, len(lost))


def _copied(segment: ColdSegment, segments: DiskTier, engine: SegmentEngine) -> bool:
    found = segments.get(replace(segment.key, namespace=""))
    if not isinstance(found, Entry):
        return False
    return engine.cache.store(segment.key, found).is_kept
