"""What an ingestion will do, before it does it."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hypic_rag.errors import BadInput
from hypic_rag.paths import absolute, path_text
from hypic_rag.retrieval import chunking
from hypic_rag.retrieval.chunking import split_document
from hypic_rag.retrieval.missing import held_back, is_absent, missing_documents, places, unknown_paths
from hypic_rag.retrieval.readers import ReadFailure, SourceDocument, read_path
from hypic_rag.retrieval.segments import cold_segments, file_bytes, room_bytes
from hypic_rag.retrieval.store import Store, StoredDocument
from hypic_rag.retrieval.throttle import Throttle

if TYPE_CHECKING:
    from hypic_rag.engine.engine import SegmentEngine
    from hypic_rag.engine.segment_manager import ColdSegment

Change = Literal["new", "changed", "metadata", "unchanged"]
Pair = tuple[str, str]  # title and text of a chunk


@dataclass(frozen=True)
class PlannedDocument:
    """change: "metadata" where the model reads the same text, but the rest of the row differs."""

    document: StoredDocument
    change: Change
    chunks: tuple[Pair, ...]
    new_chunks: tuple[Pair, ...]  # those that the stored version has not; they will be embedded
    cold: "tuple[ColdSegment, ...]"  # those that will be prefilled
    page_labels: tuple[str, ...] | None = None  # of the chunks, where any has one


@dataclass(frozen=True)
class IngestPlan:
    """Made by ``plan_ingest``, carried out by ``run_ingest``.

    failures: files and lines that should have been read but could not. skipped: passed over as they should
    be. room_bytes: what the segment cache takes before something is evicted or the disk is full.
    held: gone from their folders, but so many that they stay until ``remove`` says that they are to go. absent: ids of
    those whose file was not there; where it is again when the plan is carried out, they stay.
    """

    store: Store
    engine: "SegmentEngine"
    documents: tuple[PlannedDocument, ...]
    removed: tuple[StoredDocument, ...]
    failures: tuple[ReadFailure, ...]
    skipped: tuple[ReadFailure, ...]
    room_bytes: int
    held: tuple[StoredDocument, ...] = ()
    absent: frozenset[str] = frozenset()

    def of(self, change: Change) -> list[PlannedDocument]:
        return [planned for planned in self.documents if planned.change == change]

    @property
    def n_chunks(self) -> int:
        """Chunks of all documents that were read."""
        return sum(len(planned.chunks) for planned in self.documents)

    @property
    def n_segments(self) -> int:
        """Segments to prefill."""
        return sum(len(planned.cold) for planned in self.documents)

    @property
    def prefill_tokens(self) -> int:
        return sum(segment.key.n_tokens for planned in self.documents for segment in planned.cold)

    @property
    def forecast_bytes(self) -> int:
        """Bytes that the segments to prefill will take in the cache."""
        return sum(file_bytes(segment) for planned in self.documents for segment in planned.cold)

    @property
    def fits(self) -> bool:
        return self.forecast_bytes <= self.room_bytes

    @property
    def is_empty(self) -> bool:
        """Nothing would change, whatever is prefilled."""
        return not self.removed and not self.n_segments and all(d.change == "unchanged" for d in self.documents)


def plan_ingest(
    store: Store,
    engine: "SegmentEngine",
    paths: Sequence[str | os.PathLike[str]],
    remove: bool = False,
    mark: Callable[[SourceDocument], SourceDocument] = lambda document: document,
) -> IngestPlan:
    """Read the files and compare them with the store; change nothing.

    Stored documents from a folder among ``paths`` (or from a file among them, of several documents) that are
    no longer there will be removed; those of what could not be looked at or read stay as they are.
    remove: also where they are so many (see ``held_back``) that they are held otherwise. mark: what a document that was
    read becomes, its id and its path unchanged.
    Raises BadInput where there is nothing to read, StoreMismatch for another model.
    """
    store.check_engine(engine)
    if not paths:
        raise BadInput("no path was given: name files or folders, e.g. hypic-rag ingest docs/")
    roots = {path_text(absolute(path)) for path in paths}
    stored = store.documents()
    known = {place for one in stored for place in places(one.source)}
    read: dict[str, SourceDocument] = {}
    not_read: list[ReadFailure] = []
    for item in read_path(paths, known.__contains__):
        if isinstance(item, ReadFailure):
            not_read.append(item)
        elif item.doc_id in read:
            what = f"would be called {item.doc_id!r}, as another document is: rename one of the files"
            not_read.append(ReadFailure(item.metadata["path"], what))
        else:
            read[item.doc_id] = mark(item)
    seen: set[str] = set()
    planned = tuple(_planned(store, engine, document, seen) for document in read.values())
    unknown = unknown_paths(not_read)
    missing = missing_documents(stored, read, roots, unknown)
    held = () if remove else held_back(store, stored, missing, [(p.document, p.chunks) for p in planned], roots)
    held_ids = {one.doc_id for one in held}
    return IngestPlan(
        store,
        engine,
        documents=planned,
        removed=tuple(one for one in missing if one.doc_id not in held_ids),
        failures=tuple(failure for failure in not_read if not failure.skipped),
        skipped=tuple(failure for failure in not_read if failure.skipped),
        room_bytes=room_bytes(engine.cache, store.folder),
        held=tuple(held),
        absent=frozenset(one.doc_id for one in missing if is_absent(one.source)),
    )


def plan_documents(
    store: Store,
    engine: "SegmentEngine",
    documents: Iterable[SourceDocument],
    source: str,
    pace: Throttle | None = None,
) -> IngestPlan:
    """Plan, as ``plan_ingest`` does, documents that were read already: all that ``source``
    (their metadata's path) has now.

    Its stored documents that are not among them will be removed. pace: each document is a turn.
    Raises StoreMismatch for another model.
    """
    store.check_engine(engine)
    seen: set[str] = set()
    planned: dict[str, PlannedDocument] = {}
    turn = Throttle().turn if pace is None else pace.turn
    for document in documents:
        with turn():
            planned[document.doc_id] = _planned(store, engine, document, seen)
    removed = (stored for stored in store.documents() if stored.source == source and stored.doc_id not in planned)
    room = room_bytes(engine.cache, store.folder)
    return IngestPlan(store, engine, tuple(planned.values()), tuple(removed), (), (), room)


def plan_again(store: Store, engine: "SegmentEngine") -> IngestPlan:
    """Plan to prefill what the store has and the cache has not; no file is read and no document changes.

    As after an upgrade of the model, another seam or codec, or an eviction. Raises StoreMismatch for another model.
    """
    store.check_engine(engine)
    seen: set[str] = set()
    planned = []
    for document in store.documents():
        chunks = tuple((chunk.title, chunk.text) for chunk in store.chunks(document.doc_id))
        cold = tuple(cold_segments(engine, chunks, seen))
        planned.append(PlannedDocument(document, "unchanged", chunks, new_chunks=(), cold=cold))
    return IngestPlan(store, engine, tuple(planned), (), (), (), room_bytes(engine.cache, store.folder))


def _planned(store: Store, engine: "SegmentEngine", source: SourceDocument, seen: set[str]) -> PlannedDocument:
    stored = store.document(source.doc_id)
    old = tuple((chunk.title, chunk.text) for chunk in store.chunks(source.doc_id)) if stored else ()
    known = set(old)
    change: Change
    page_labels: tuple[str, ...] | None = None
    content_hash = f"{chunking.VERSION}:{source.content_hash}"  # what was cut otherwise is cut anew
    if stored is not None and stored.content_hash == content_hash:
        change, chunks = "unchanged", old
    else:
        sizes = store.manifest.chunk_tokens, store.manifest.chunk_overlap
        made = split_document(source.title, source.text, engine.format, *sizes, source.pages)
        chunks = tuple((chunk.title, chunk.text) for chunk in made)
        page_labels = tuple(chunk.page_label for chunk in made) if source.pages else None
        change = "new" if stored is None else "metadata" if chunks == old else "changed"
    new_chunks = tuple(dict.fromkeys(pair for pair in chunks if pair not in known))
    document = StoredDocument(source.doc_id, source.metadata["path"], source.title, content_hash, source.metadata)
    cold = tuple(cold_segments(engine, chunks, seen))
    return PlannedDocument(document, change, chunks, new_chunks, cold, page_labels)
