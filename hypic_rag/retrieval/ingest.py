"""Documents into a store: ``plan_ingest`` says what will happen, ``run_ingest`` does it.

Killed at any moment, the store stays whole: a document's old version answers until its new one has been
committed, and the next run goes on where this one stopped.
"""

import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.missing import is_absent
from hypic_rag.retrieval.plan import IngestPlan, Pair, PlannedDocument, plan_again, plan_documents, plan_ingest
from hypic_rag.retrieval.readers import ReadFailure
from hypic_rag.retrieval.segments import PASSES, PackedPrefill, stored_segment
from hypic_rag.retrieval.store import NeedsVectors, Store, Swap
from hypic_rag.retrieval.throttle import Throttle
from hypic_rag.retrieval.vectors import Vectors

__all__ = [
    "IngestPlan",
    "IngestProgress",
    "IngestReport",
    "plan_again",
    "plan_documents",
    "plan_ingest",
    "run_ingest",
]

BATCH_CHUNKS = 64


@dataclass(frozen=True)
class IngestProgress:
    """documents: committed, of all. tokens: prefilled (or passed over for want of room), of all to
    prefill. n_prefilled: segments.
    """

    n_documents: int
    total_documents: int
    n_tokens: int
    total_tokens: int
    n_prefilled: int = 0


@dataclass(frozen=True)
class IngestReport:
    """What was done. Documents: new, changed, metadata (rows only), unchanged, removed.

    n_prefilled: segments computed. n_hits: those that somebody else had made meanwhile. n_cold: those that
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
    for batch in _batches(plan.documents, PASSES * plan.engine.pass_tokens):
        run.take(batch, prefill == "all")
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
        n_cold=packed.n_cold if prefill == "all" else plan.n_segments,
        prefill_tokens=packed.n_tokens,
        is_full=packed.is_full,
        seconds=time.perf_counter() - start,
        failures=plan.failures,
        skipped=plan.skipped,
        held=tuple(document.doc_id for document in plan.held),
    )


def _batches(documents: Sequence[PlannedDocument], max_tokens: int) -> Iterator[list[PlannedDocument]]:
    """Yield some documents at a time: what is embedded and prefilled together, to be lost at most when killed."""
    batch: list[PlannedDocument] = []
    n_tokens = n_chunks = 0
    for planned in documents:
        tokens = sum(len(segment.ids) for segment in planned.cold)
        if batch and (n_tokens + tokens > max_tokens or n_chunks + len(planned.new_chunks) > BATCH_CHUNKS):
            yield batch
            batch, n_tokens, n_chunks = [], 0, 0
        batch.append(planned)
        n_tokens += tokens
        n_chunks += len(planned.new_chunks)
    if batch:
        yield batch


class _Run:
    def __init__(self, plan: IngestPlan, on_progress: Callable[[IngestProgress], None] | None, pace: Throttle):
        self.plan = plan
        self.store: Store = plan.store
        self.on_progress = on_progress
        self.pace = pace
        self.packed = PackedPrefill(plan.engine, self.store.folder, self._tokens_done, pace)
        self.n_added = self.n_removed = self.n_documents_removed = self.n_documents = self.n_tokens = 0
        self.total_tokens = plan.prefill_tokens

    def remove(self) -> None:
        for document in self.plan.removed:
            if document.doc_id in self.plan.absent and not is_absent(document.source):
                continue  # it has come back since
            self.n_removed += self.store.remove_document(document.doc_id)
            self.n_documents_removed += 1

    def take(self, batch: Sequence[PlannedDocument], prefill: bool) -> None:
        """Make vectors and segments of some documents first; then swap each in, in a transaction of its own."""
        vectors = self._vectors([pair for planned in batch for pair in planned.new_chunks])
        if prefill:
            self.packed.run([segment for planned in batch for segment in planned.cold])
        for planned in batch:
            if planned.change != "unchanged":
                swap = self._swap(planned, vectors)
                self.n_added += swap.n_added
                self.n_removed += swap.n_removed
            self.n_documents += 1
            self._report()

    def discard_gone(self, except_for: Container[Pair] = ()) -> None:
        """Discard from the cache the segments that no chunk needs any more."""
        engine, gone = self.plan.engine, [pair for pair in self.store.gone() if pair not in except_for]
        if gone:
            stored = filter(None, (stored_segment(engine, title, text) for title, text in gone))
            engine.cache.discard([key.digest for _, key in stored])
            self.store.forget_gone(gone)

    def _swap(self, planned: PlannedDocument, vectors: dict[Pair, Vectors]) -> Swap:
        while True:
            try:
                return self.store.swap_document(planned.document, planned.chunks, vectors)
            except NeedsVectors as missing:  # another process took out a chunk since the plan was made
                vectors = vectors | self._vectors(missing.texts)

    def _vectors(self, pairs: Sequence[Pair]) -> dict[Pair, Vectors]:
        pairs = list(dict.fromkeys(pairs))
        if not pairs:
            return {}
        vectors: dict[Pair, Vectors] = {}

        def embed(some: Sequence[Pair]) -> None:
            texts = [f"{title}\n{text}" if title else text for title, text in some]
            vectors.update(zip(some, self.store.embedder.embed(texts), strict=True))

        self.pace.run("embed", pairs, lambda pair: len(pair[1]), sys.maxsize, embed)
        return vectors

    def _tokens_done(self, n_tokens: int) -> None:
        self.n_tokens += n_tokens
        self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                IngestProgress(
                    self.n_documents,
                    len(self.plan.documents),
                    self.n_tokens,
                    self.total_tokens,
                    self.packed.n_prefilled + self.packed.n_hits,
                )
            )
