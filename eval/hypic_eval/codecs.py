"""What storing segments by a codec costs, question by question, against the same entries as they were computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hypic_eval.intervals import HOW, mean, paired_difference
from hypic_eval.machine import describe_machine
from hypic_eval.measure import MeasuredQuestion, ask, measure, measured_key
from hypic_eval.metrics import METRICS
from hypic_eval.modes import Mode
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile, row_key
from hypic_eval.summary import dropped_documents
from hypic_eval.task import read_questions

if TYPE_CHECKING:
    import torch

    from hypic_rag.cache import Entry, SegmentKey
    from hypic_rag.engine import SegmentEngine

VERSION = 1
"""Raised whenever a change to this file or to a codec alters any figure."""
NONE = "none"
KL_GOAL, FIRST_GOAL = 5.0, 99.0
"""Thousandths of a nat, on average; percent of the questions. And the first score's paired difference must have 0 in
its interval."""

ByCodec = dict[str, list[dict[str, Any]]]


def run_codecs(
    engine: "SegmentEngine",
    data: Path,
    codecs: Sequence[str],
    mode: Mode,
    rows: RowFile,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Measure the questions of a file (the first ``limit``), each answered from the same entries stored by every codec.

    engine: of codec "none", which is measured too. Raises BadInput for an unknown codec.
    """
    engines = {NONE: engine} | {name: with_codec(engine, name) for name in codecs}
    task, questions = read_questions(data, limit=limit)
    asked = [ask(engine, task, question) for question in questions]
    measured: ByCodec = {name: [] for name in engines}
    for done, one in enumerate(asked, start=1):
        for name, row in measure_question(engines, one, mode, rows).items():
            measured[name].append(row)
        on_progress(done, len(asked))
    result, notes = summarise(engine, data.stem, asked, mode, measured)
    notes.append(dropped_documents(data.stem, asked, engine.context_length))
    return Results("codecs", describe_machine(), result, notes)


def with_codec(engine: "SegmentEngine", name: str) -> "SegmentEngine":
    """Return an engine of the same model and cache whose entries are stored by another codec; they take turns."""
    from hypic_rag.cache import codec_named
    from hypic_rag.engine.segment_manager import SegmentManager

    old = engine.segments
    other = engine.with_segments(
        SegmentManager(old.model, old.cache_spec, old.cache, replace(old.template, codec=name), False, old.passes)
    )
    other.codec = codec_named(name)
    return other


def measure_question(
    engines: Mapping[str, "SegmentEngine"], asked: MeasuredQuestion, mode: Mode, rows: RowFile
) -> dict[str, dict[str, Any]]:
    """Measure a row a codec, or take it from ``rows`` where all are there. Documents are prefilled once
    and leave the cache at the end."""
    keys = {
        name: row_key({"codecs": VERSION, "measured": measured_key(engine, asked, mode)})
        for name, engine in engines.items()
    }
    found = {name: row for name, key in keys.items() if (row := rows.get(key)) is not None}
    if len(found) == len(engines):
        return found
    measured: dict[str, dict[str, Any]] = {}
    as_computed: NDArray[np.float64] | None = None
    with same_entries(engines, asked, mode) as stored_bytes:
        for name, engine in engines.items():
            row, logprobs = measure(engine, asked, mode, as_computed)
            as_computed = logprobs if as_computed is None else as_computed
            measured[name] = {**row, "codec": name, "stored_bytes": stored_bytes[name]}
            if name not in found:
                rows.append(keys[name], measured[name])
    return measured


@contextmanager
def same_entries(
    engines: Mapping[str, "SegmentEngine"], asked: MeasuredQuestion, mode: Mode
) -> Iterator[dict[str, list[int]]]:
    """Prefill the question's documents once, and have the same entries stored by every codec while the block runs.
    Yield by codec the bytes of each as stored."""
    cache = engines[NONE].cache
    segments = {name: segment_keys(engine, asked, mode) for name, engine in engines.items()}
    try:
        engines[NONE].prefill(asked.prompt.documents, policy=mode.policy)
        entries = [moved(cache.lookup(key).entry, engines[NONE].device) for key in segments[NONE]]  # type: ignore[union-attr]
        for name in engines:
            for key, entry in zip(segments[name], entries, strict=True):
                cache.put(key, entry)
        yield {name: [engine.codec.encode(entry).nbytes for entry in entries] for name, engine in engines.items()}
    finally:
        cache.discard({key.digest for of_codec in segments.values() for key in of_codec})


def moved(entry: "Entry", device: "torch.device") -> "Entry":
    """Move an entry to where a codec is quickest: on a GPU, if the model is on one."""
    layers = (
        replace(layer, tensors={name: t.to(device) for name, t in layer.tensors.items()}) for layer in entry.layers
    )
    return replace(entry, layers=tuple(layers))


def segment_keys(engine: "SegmentEngine", asked: MeasuredQuestion, mode: Mode) -> "list[SegmentKey]":
    documents = [ids for ids in asked.prompt.documents if len(ids) > mode.seam_tokens]
    return [engine.segment_key(ids, policy=mode.policy) for ids in documents]


def summarise(
    engine: "SegmentEngine", data: str, asked: Sequence[MeasuredQuestion], mode: Mode, measured: ByCodec
) -> tuple[list[ResultRow], list[str]]:
    """Return rows by codec, and notes that say of each codec whether the scores' differences to
    none have 0 in their interval."""
    task, as_computed = asked[0].task, measured[NONE]
    first_score = next(iter(task.scores))
    settings = {
        "fingerprint": engine.fingerprint,
        "mode": str(mode),
        "max_new_tokens": task.max_new_tokens,
        "interval": HOW,
    }
    result: list[ResultRow] = []
    notes = [f"Documents are assembled as {mode}; Δ is the paired difference to codec none, over the same entries."]
    for codec, rows in measured.items():

        def add(
            metric: str,
            arrow: str,
            unit: str,
            value: float,
            interval: tuple[float, float] | None = None,
            codec: str = codec,
            rows: Sequence[dict[str, Any]] = rows,
            **more: Any,
        ) -> None:
            about = (f"{task.name} by codec", task.version, data, len(rows), codec)
            model = (engine.model_name, commits(rows), settings)
            result.append(ResultRow(*about, metric, arrow, unit, value, interval, *model, **more))

        for metric in (METRICS[name] for name in (*task.scores, "nll")):
            values, baseline = ([row[metric.name] for row in some] for some in (rows, as_computed))
            difference = None if codec == NONE else paired_difference(values, baseline)
            own = metric.shown(mean(values))
            add(
                metric.title,
                metric.arrow,
                metric.unit,
                own["value"],
                own["interval"],
                to_full=difference and metric.shown(difference),
            )
            if metric.name in task.scores and difference is not None and difference.interval is not None:
                low, high = difference.interval
                has = "has" if low <= 0 <= high else "does NOT have"
                notes.append(f"{codec}, {metric.title}: the interval of the difference {has} 0 in it.")
                if metric.name == first_score:
                    beyond = metric.scale * max(0.0, low, -high)
                    add(f"{metric.title}: how far Δ's interval is from 0", "↓", metric.unit, beyond, goal=0.0)
        sizes = [n / 2**20 for row in rows for n in row["stored_bytes"]]
        add("bytes a segment", "↓", "MiB", fmean(sizes) if sizes else 0.0)
        if codec != NONE:
            kl = mean([1e3 * row["kl"] for row in rows])
            pairs = list(zip(rows, as_computed, strict=True))
            same = fmean(row["first_token"] == other["first_token"] for row, other in pairs)
            same_answer = fmean(row["answer"] == other["answer"] for row, other in pairs)
            add("first-token KL to none", "↓", "mnats", kl.value, kl.interval, goal=KL_GOAL)
            add("same first token", "↑", "%", 100 * same, goal=FIRST_GOAL)
            add("same answer", "↑", "%", 100 * same_answer)
    return result, notes
