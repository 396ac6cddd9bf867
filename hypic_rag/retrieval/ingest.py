"""Documents into a store: ``plan_ingest`` says what will happen, ``run_ingest`` does it.

Killed at any moment, the store stays whole: a document's old version answers until its new one has been
committed, and the next run goes on where this one stopped.
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from hypic_rag.errors import BadInput
from hypic_rag.packs import packs
from hypic_rag.retrieval.missing import is_absent
from hypic_rag.retrieval.plan import IngestPlan, Pair, PlannedDocument, plan_again, plan_documents, plan_ingest
from hypic_rag.retrieval.readers import ReadFailure
from hypic_rag.retrieval.segments import PASSES, PackedPrefill, stored_segment
from hypic_rag.retrieval.store import NeedsVectors, Store, Swap
from hypic_rag.retrieval.throttle import Throttle
from hypic_rag.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from hypic_rag.engine.segment_manager import ColdSegment

__all__ = [
    "IngestPlan",
    "IngestProgress",
    "IngestReport",
    "plan_again",
    "plan_documents",
    "plan_ingest",
    "run_ingest",
]

PACK_CHUNKS = 64


@dataclass(frozen=True)
class IngestProgress:
    """documents: committed, of all. tokens: prefilled (or passed over for want of room), of all to
    prefill. n_prefilled: segments. lost: digests of those that were left cold.
    """

    n_documents: int
    total_documents: int
    n_tokens: int
    total_tokens: int
    n_prefilled: int = 0
    lost: Set[str] = frozenset()


@dataclass(frozen=True)
class IngestReport:
    """What was done. Documents: new, changed, metadata (rows only), unchanged, removed.

    n_prefilled: segments computed. n_hits: those that memory had, and that were only written down. n_cold: those that
    are not in the cache and will be computed when they are first asked for. is_full: the budget or the disk
    was. held: ids of documents that are gone from their folders, but too many to be removed unasked.
    """

    n_new: int
    n_changed: int
    n_metadata: int
    n_unchanged: int
    n_removed: int
    n_chunks_added: int
    n_chunks_removed: int
    n_prefilled: int
    n_hits: int
    n_cold: int
    prefill_tokens: int
    is_full: bool
    seconds: float
    failures: tuple[ReadFailure, ...]
    skipped: tuple[ReadFailure, ...]
    held: tuple[str, ...] = ()


def run_ingest(
    plan: IngestPlan,
    prefill: Literal["all", "none"] = "all",
    on_progress: Callable[[IngestProgress], None] | None = None,
    pace: Throttle | None = None,
) -> IngestReport:
    """Carry out a plan, document by document, and return what was done.

    prefill "none" only indexes: segments are then computed when they are first asked for. pace: for a run beside
    which others use the engine and the embedder; what its turn raises ends the run, and the store stays whole.
    A plan that another process has overtaken still does the right thing: one copy of each document remains.
    """
    if prefill not in ("all", "none"):
        raise BadInput(f"prefill is 'all' or 'none', not {prefill!r}")
    start = time.perf_counter()
    run = _Run(plan, on_progress, pace or Throttle())
    run.remove()
    # Makes room first; but what a document of this run has again (a renamed file) stays.
    run.discard_gone(except_for={pair for planned in plan.documents for pair in planned.chunks})
    if prefill == "none":
        run.packed.lost.update(segment.key.digest for planned in plan.documents for segment in planned.cold)
    for pack in run.packs(prefill == "all"):
        run.take(pack)
    run.discard_gone()
    if prefill == "all":
        run.packed.leading()
    packed = run.packed
    return IngestReport(
        n_new=len(plan.of("new")),
        n_changed=len(plan.of("changed")),
        n_metadata=len(plan.of("metadata")),
        n_unchanged=len(plan.of("unchanged")),
        n_removed=run.n_documents_removed,
        n_chunks_added=run.n_added,
        n_chunks_removed=run.n_removed,
        n_prefilled=packed.n_prefilled,
        n_hits=packed.n_hits,
        n_cold=len(packed.lost),
        prefill_tokens=packed.n_tokens,
        is_full=packed.is_full,
        seconds=time.perf_counter() - start,
        failures=plan.failures,
        skipped=plan.skipped,
        held=tuple(document.doc_id for document in plan.held),
    )


@dataclass(frozen=True)
class _Piece:
    """What a pack is made of: a chunk of a document to embed, a segment to prefill, or both or neither.

    last: the document, where this is its last piece.
    """

    new_chunk: Pair | None
    cold: "ColdSegment | None"
    last: PlannedDocument | None

    @property
    def n_characters(self) -> int:
        return 0 if self.new_chunk is None else len(self.new_chunk[1])

    @property
    def n_tokens(self) -> int:
        return 0 if self.cold is None else self.cold.key.n_tokens


def _pieces(documents: Sequence[PlannedDocument], prefill: bool) -> Iterator[_Piece]:
    for planned in documents:
        both = list(zip_longest(planned.new_chunks, planned.cold if prefill else ())) or [(None, None)]
        for n, (new_chunk, cold) in enumerate(both, 1):
            yield _Piece(new_chunk, cold, planned if n == len(both) else None)


class _Run:
    def __init__(self, plan: IngestPlan, on_progress: Callable[[IngestProgress], None] | None, pace: Throttle):
        self.plan = plan
        self.store: Store = plan.store
        self.on_progress = on_progress
        self.pace = pace
        self.packed = PackedPrefill(plan.engine, self.store.folder)
        self.vectors: dict[Pair, Vectors] = {}  # of documents under way
        self.n_added = self.n_removed = self.n_documents_removed = self.n_documents = self.n_tokens = 0
        self.total_tokens = plan.prefill_tokens

    def remove(self) -> None:
        for document in self.plan.removed:
            if document.doc_id in self.plan.absent and not is_absent(document.source):
                continue  # it has come back since
            self.n_removed += self.store.remove_document(document.doc_id)
            self.n_documents_removed += 1

    def packs(self, prefill: bool) -> Iterator[Sequence[_Piece]]:
        """Cut the plan into what is embedded and prefilled together, to be lost at most when killed."""
        most = PASSES * self.plan.engine.pass_tokens
        return packs(
            list(_pieces(self.plan.documents, prefill)),
            (lambda piece: piece.n_tokens, lambda: self.pace.room("prefill", most)),
            (lambda piece: piece.n_characters, lambda: self.pace.room("embed")),
            (lambda piece: piece.new_chunk is not None, lambda: PACK_CHUNKS),
        )

    def take(self, pack: Sequence[_Piece]) -> None:
        """Make vectors and segments of a pack; then swap in each document that ends in it, in a transaction of its
        own."""
        self._embed([piece.new_chunk for piece in pack if piece.new_chunk is not None])
        cold = [piece.cold for piece in pack if piece.cold is not None]
        if cold:
            n_tokens = sum(piece.n_tokens for piece in pack)
            with self.pace.bite("prefill", n_tokens):
                self.packed.run(cold)
            self.n_tokens += n_tokens
            self._report()
        for planned in [piece.last for piece in pack if piece.last is not None]:
            if planned.change != "unchanged":
                swap = self._swap(planned)
                self.n_added += swap.n_added
                self.n_removed += swap.n_removed
            self.n_documents += 1
            self._report()
        if pack[-1].last is not None:
            self.vectors.clear()

    def discard_gone(self, except_for: Container[Pair] = ()) -> None:
        """Discard from the cache the segments that no chunk needs any more."""
        engine, gone = self.plan.engine, [pair for pair in self.store.gone() if pair not in except_for]
        if gone:
            stored = filter(None, (stored_segment(engine, title, text) for title, text in gone))
            engine.cache.discard([key.digest for _, key in stored])
            self.store.forget_gone(gone)

    def _swap(self, planned: PlannedDocument) -> Swap:
        while True:
            try:
                return self.store.swap_document(planned.document, planned.chunks, self.vectors, planned.page_labels)
            except NeedsVectors as missing:  # another process took out a chunk since the plan was made
                self._embed(missing.texts)

    def _embed(self, pairs: Sequence[Pair]) -> None:
        pairs = [pair for pair in dict.fromkeys(pairs) if pair not in self.vectors]
        if pairs:
            texts = [f"{title}\n{text}" if title else text for title, text in pairs]
            with self.pace.bite("embed", sum(len(text) for _, text in pairs)):
                self.vectors.update(zip(pairs, self.store.embedder.embed(texts), strict=True))

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                IngestProgress(
                    self.n_documents,
                    len(self.plan.documents),
                    self.n_tokens,
                    self.total_tokens,
                    self.packed.n_prefilled + self.packed.n_hits,
                    self.packed.lost,
                )
            )
