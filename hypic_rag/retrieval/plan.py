"""What an ingestion will do, before it does it."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.chunking import split_document
from hypic_rag.retrieval.readers import ReadFailure, SourceDocument, read_path
from hypic_rag.retrieval.segments import ColdSegment, cold_segments, room_bytes
from hypic_rag.retrieval.store import Store, StoredDocument

if TYPE_CHECKING:
    from hypic_rag.engine.engine import SegmentEngine

Change = Literal["new", "changed", "metadata", "unchanged"]
Pair = tuple[str, str]  # title and text of a chunk


@dataclass(frozen=True)
class PlannedDocument:
    """change: "metadata" where the model reads the same text, but the rest of the row differs."""

    document: StoredDocument
    change: Change
    chunks: tuple[Pair, ...]
    new_chunks: tuple[Pair, ...]  # those that the stored version has not; they will be embedded
    cold: tuple[ColdSegment, ...]  # those that will be prefilled


@dataclass(frozen=True)
class IngestPlan:
    """Made by ``plan_ingest``, carried out by ``run_ingest``.

    room_bytes: what the segment cache takes before something is evicted or the disk is full.
    """

    store: Store
    engine: "SegmentEngine"
    documents: tuple[PlannedDocument, ...]
    removed: tuple[StoredDocument, ...]
    failures: tuple[ReadFailure, ...]
    room_bytes: int

    def of(self, change: Change) -> list[PlannedDocument]:
        return [planned for planned in self.documents if planned.change == change]

    @property
    def n_chunks(self) -> int:
        """Chunks of all documents that were read."""
        return sum(len(planned.chunks) for planned in self.documents)

    @property
    def n_new_chunks(self) -> int:
        return sum(len(planned.new_chunks) for planned in self.documents)

    @property
    def n_segments(self) -> int:
        """Segments to prefill."""
        return sum(len(planned.cold) for planned in self.documents)

    @property
    def prefill_tokens(self) -> int:
        return sum(len(segment.ids) for planned in self.documents for segment in planned.cold)

    @property
    def forecast_bytes(self) -> int:
        """Bytes that the segments to prefill will take in the cache."""
        return sum(segment.nbytes for planned in self.documents for segment in planned.cold)

    @property
    def fits(self) -> bool:
        return self.forecast_bytes <= self.room_bytes

    @property
    def is_empty(self) -> bool:
        """Nothing would change, whatever is prefilled."""
        return (
            not self.removed and not self.n_segments and all(d.change == "unchanged" for d in self.documents)
        )


def plan_ingest(store: Store, engine: "SegmentEngine", paths: Sequence[str | os.PathLike[str]]) -> IngestPlan:
    """Reads the files and compares them with the store; changes nothing.

    Stored documents from a folder among ``paths`` (or from a file among them, of several documents) that
    are no longer there will be removed; those of a file that could not be read stay as they are. Raises
    BadInput where there is nothing to read, StoreMismatch for another model.
    """
    store.check_engine(engine)
    if not paths:
        raise BadInput("no path was given: name files or folders, e.g. hypic-rag ingest docs/")
    given = [Path(path) for path in paths]
    read: dict[str, SourceDocument] = {}
    failures: list[ReadFailure] = []
    for item in read_path(given):
        if isinstance(item, ReadFailure):
            failures.append(item)
        else:
            read.setdefault(_clean(item.doc_id), item)  # a file named twice is one document
    seen: set[str] = set()
    documents = tuple(_planned(store, engine, doc_id, document, seen) for doc_id, document in read.items())
    failed = {_resolved(failure.path) for failure in failures}
    roots = [_resolved(path) for path in given]
    removed = tuple(
        stored
        for stored in store.documents()
        if stored.doc_id not in read
        and stored.source not in failed
        and any(
            stored.source == root or stored.source.startswith(root.rstrip(os.sep) + os.sep) for root in roots
        )
    )
    return IngestPlan(
        store, engine, documents, removed, tuple(failures), room_bytes(engine.cache, store.folder)
    )


def _planned(
    store: Store, engine: "SegmentEngine", doc_id: str, source: SourceDocument, seen: set[str]
) -> PlannedDocument:
    wanted = StoredDocument(
        doc_id, _source(source), _clean(source.title), source.content_hash, _as_stored(source.metadata)
    )
    stored = store.document(doc_id)
    old = tuple((chunk.title, chunk.text) for chunk in store.chunks(doc_id)) if stored else ()
    if wanted == stored:
        chunks = old
    else:
        chunks = tuple(
            (chunk.title, chunk.text)
            for chunk in split_document(
                wanted.title,
                _clean(source.text),
                engine.format,
                store.manifest.chunk_tokens,
                store.manifest.chunk_overlap,
            )
        )
    change: Change = (
        "new"
        if stored is None
        else "unchanged"
        if wanted == stored
        else "metadata"
        if chunks == old
        else "changed"
    )
    known = set(old)
    new_chunks = tuple(pair for pair in dict.fromkeys(chunks) if pair not in known)
    return PlannedDocument(wanted, change, chunks, new_chunks, tuple(cold_segments(engine, chunks, seen)))


def _source(document: SourceDocument) -> str:
    """The file a document came from, by which it is found again when the file has gone."""
    return _resolved(document.metadata.get("path", document.doc_id))


def _resolved(path: str | os.PathLike[str]) -> str:
    return _clean(os.path.realpath(path))


def _clean(text: str) -> str:
    """Half characters (of broken file names or JSON escapes) cannot be stored as text."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _as_stored(metadata: dict[str, Any]) -> dict[str, Any]:
    """As it will come back from the store, to compare with what is there."""
    stored: dict[str, Any] = json.loads(_clean(json.dumps(metadata, ensure_ascii=False, default=str)))
    return stored
