"""How well, and how fast, passages are found: the paragraphs of all questions of a file are one store."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hypic_eval.intervals import N_RESAMPLES, SEED, Estimate, mean, median, paired_difference
from hypic_eval.machine import commit, describe_machine
from hypic_eval.ranking import ndcg, recall, reciprocal_rank
from hypic_eval.results import ResultRow, Results
from hypic_eval.task import Document, read_rows
from hypic_rag.errors import BadInput
from hypic_rag.rag.search import SearchOptions, find_passages
from hypic_rag.retrieval.store import Store, StoredDocument
from hypic_rag.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.retrieval import Embedder

VERSION = 1
"""Raised whenever a change to this file alters any figure."""
DEPTH = 10
METRICS: dict[str, Callable[[Sequence[int], frozenset[int]], float]] = {
    "recall@2": lambda ranked, gold: recall(ranked, gold, 2),
    "recall@5": lambda ranked, gold: recall(ranked, gold, 5),
    "recall@10": lambda ranked, gold: recall(ranked, gold, 10),
    "all of them in 5": lambda ranked, gold: float(recall(ranked, gold, 5) == 1),
    "MRR@10": lambda ranked, gold: reciprocal_rank(ranked, gold, 10),
    "nDCG@10": lambda ranked, gold: ndcg(ranked, gold, 10),
}
BASELINE = "dense"
MS_GOAL = 30.0  # a question, over about 3,000 paragraphs on 2 cores


@dataclass(frozen=True)
class PooledQuestions:
    """paragraphs: of all questions, each once. gold: of each question, where those stand that support its answer."""

    name: str
    questions: tuple[str, ...]
    gold: tuple[frozenset[int], ...]
    paragraphs: tuple[Document, ...]


def read_pool(path: Path, limit: int | None = None) -> PooledQuestions:
    """Read a jsonl file ``{question, docs: [{title, text, gold}]}``; limit: of the questions, all paragraphs stay.

    Raises BadInput for a row of another shape, or one without a paragraph that is gold.
    """
    at: dict[Document, int] = {}
    questions, gold = [], []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            documents = [((str(one.get("title", "")), str(one["text"])), bool(one.get("gold"))) for one in row["docs"]]
            question = str(row["question"])
        except (KeyError, TypeError, AttributeError) as error:
            told = f"{path}, line {number}: not a row {{question, docs: [{{title, text, gold}}]}}: {error!r}"
            raise BadInput(told) from error
        supporting = frozenset(at.setdefault(document, len(at)) for document, is_gold in documents if is_gold)
        for document, _ in documents:
            at.setdefault(document, len(at))
        if not supporting:
            raise BadInput(f'{path}, line {number}: none of its docs has "gold": true, so nothing can be missed')
        questions.append(question)
        gold.append(supporting)
    return PooledQuestions(path.stem, tuple(questions[:limit]), tuple(gold[:limit]), tuple(at))


def run_retrieval(
    engine: "SegmentEngine",
    embedder: "Embedder",
    files: Sequence[Path],
    methods: Sequence[SearchOptions],
    vectors: Path | None = None,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Results:
    """Ask every question of each file by every method, of a store of its paragraphs.

    methods: by their ``method``, the first of each name counts; dense is what others are compared with.
    vectors: a folder that keeps vectors from one run to the next. Raises BadInput.
    """
    rows: list[ResultRow] = []
    for path in files:
        pool = read_pool(path, limit)
        embedded = _vectors(embedder, pool, vectors, on_progress)
        with tempfile.TemporaryDirectory() as folder, Store.create_or_open(folder, engine, embedder=embedder) as store:
            _fill(store, pool, embedded)
            scores, milliseconds = _ask(store, pool, methods, on_progress)
        rows += _rows(pool, embedder.name, scores, milliseconds)
    notes = [
        f"Paragraphs of all questions of a file are one store. Δ is the paired difference to {BASELINE}. Times include "
        "embedding the question; their intervals are quartiles. OMP_WAIT_POLICY is "
        f"{os.environ.get('OMP_WAIT_POLICY', 'not set')}."
    ]
    return Results("retrieval", describe_machine(), rows, notes)


def _vectors(
    embedder: "Embedder", pool: PooledQuestions, folder: Path | None, on_progress: Callable[[str, int, int], None]
) -> Vectors:
    """Embed the paragraphs, (n, dimension), or take what is kept of them."""
    texts = [f"{title}\n{text}" if title else text for title, text in pool.paragraphs]
    if folder is None:
        return embedder.embed(texts, lambda done, total: on_progress(f"{pool.name}, vectors", done, total))
    key = hashlib.sha256(json.dumps([embedder.fingerprint, texts]).encode()).hexdigest()
    file = folder / f"{key}.npy"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(file, _vectors(embedder, pool, None, on_progress))
    found: Vectors = np.load(file)
    return found


def _fill(store: Store, pool: PooledQuestions, vectors: Vectors) -> None:
    """Put the paragraphs in as the chunks of one document, in one transaction."""
    of_each = dict(zip(pool.paragraphs, vectors, strict=True))
    store.swap_document(StoredDocument(pool.name, "", "", "", {}), pool.paragraphs, of_each)


def _ask(
    store: Store,
    pool: PooledQuestions,
    methods: Sequence[SearchOptions],
    on_progress: Callable[[str, int, int], None],
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[float]]]:
    """Return scores by method and metric, and milliseconds by method, one a question; the methods take turns."""
    scores: dict[str, dict[str, list[float]]] = {one.method: {name: [] for name in METRICS} for one in methods}
    milliseconds: dict[str, list[float]] = {one.method: [] for one in methods}
    for options in methods:
        find_passages(store, pool.questions[0], DEPTH, options)  # loads the embedder, looks through the index
    for done, (question, gold) in enumerate(zip(pool.questions, pool.gold, strict=True), start=1):
        for options in methods:
            began = time.perf_counter()
            found = find_passages(store, question, DEPTH, options)
            milliseconds[options.method].append(1000 * (time.perf_counter() - began))
            ranked = [one.metadata["ordinal"] for one in found]
            for name, score in METRICS.items():
                scores[options.method][name].append(100 * score(ranked, gold))
        on_progress(pool.name, done, len(pool.questions))
    return scores, milliseconds


def _rows(
    pool: PooledQuestions,
    embedder: str,
    scores: dict[str, dict[str, list[float]]],
    milliseconds: dict[str, list[float]],
) -> list[ResultRow]:
    settings: dict[str, Any] = {
        "n_paragraphs": len(pool.paragraphs),
        "interval": f"95% bootstrap over questions, {N_RESAMPLES} resamples, seed {SEED}; of times quartiles",
    }

    def row(mode: str, metric: str, arrow: str, unit: str, of: Estimate, **more: Any) -> ResultRow:
        about = ("retrieval", VERSION, f"{pool.name} ({len(pool.paragraphs):,} paragraphs)", len(pool.questions), mode)
        return ResultRow(*about, metric, arrow, unit, of.value, of.interval, embedder, commit(), settings, **more)

    rows = []
    for method, of_method in scores.items():
        for name, values in of_method.items():
            difference = None
            if method != BASELINE and BASELINE in scores:
                estimate = paired_difference(values, scores[BASELINE][name])
                difference = {"value": estimate.value, "interval": estimate.interval and list(estimate.interval)}
            rows.append(row(method, name, "↑", "%", mean(values), to_full=difference))
        rows.append(row(method, "time a question", "↓", "ms", median(milliseconds[method]), goal=MS_GOAL))
    return rows
