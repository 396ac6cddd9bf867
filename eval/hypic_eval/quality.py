"""Answer quality of several modes on several files, with intervals and paired differences to full."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_eval.intervals import N_RESAMPLES, SEED, Estimate, mean, paired_difference
from hypic_eval.machine import describe_machine
from hypic_eval.measure import MeasuredQuestion, ask, measure_all
from hypic_eval.metrics import METRICS, Metric
from hypic_eval.modes import FULL, Mode
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile
from hypic_eval.task import read_questions

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine


def run_quality(
    engine: "SegmentEngine",
    paths: Sequence[Path],
    modes: Sequence[Mode],
    rows: RowFile,
    task_name: str | None = None,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Results:
    """Measure every question of every file in every mode.

    rows: where measured rows are kept; what it holds already is not run again.
    limit: only the first questions of each file.
    on_progress: called with the file's name, rows done and rows in all.
    """
    # All files are read before anything runs: a mistake in the last one should not cost an hour.
    files = [(path, *read_questions(path, task_name, limit)) for path in paths]
    result_rows: list[ResultRow] = []
    notes: list[str] = []
    for path, task, questions in files:
        asked = [ask(engine, task, question) for question in questions]
        name = path.stem

        def tick(done: int, total: int, name: str = name) -> None:
            on_progress(name, done, total)

        measured = measure_all(engine, asked, modes, rows, tick)
        result_rows += summarise(engine, name, asked, measured)
        notes.append(dropped_documents(name, asked, engine.context_length))
    return Results("quality", describe_machine(), result_rows, notes)


def summarise(
    engine: "SegmentEngine", data: str, asked: Sequence[MeasuredQuestion], measured: Mapping[Mode, list[dict[str, Any]]]
) -> list[ResultRow]:
    """Make a result row for each mode and metric of one task."""
    task = asked[0].task
    settings = {
        "fingerprint": engine.fingerprint,
        "prompt_format": engine.format.version,
        "context_length": engine.context_length,
        "max_new_tokens": task.max_new_tokens,
        "interval": f"95% bootstrap over questions, {N_RESAMPLES} resamples, seed {SEED}",
    }
    full = measured.get(FULL)
    result = []
    for mode, rows in measured.items():
        for metric in (METRICS[name] for name in (*task.scores, "nll", "kl")):
            values = [row[metric.name] for row in rows]
            estimate, difference = mean(values), None
            if full is not None and mode != FULL and metric.name != "kl":
                difference = shown(metric, paired_difference(values, [row[metric.name] for row in full]))
            result.append(
                ResultRow(
                    task=task.name,
                    version=task.version,
                    data=data,
                    n=len(values),
                    mode=str(mode),
                    metric=metric.title,
                    arrow=metric.arrow,
                    unit=metric.unit,
                    **shown(metric, estimate),
                    model=engine.model_name,
                    commit=commits(rows),
                    settings=settings,
                    to_full=difference,
                )
            )
    return result


def shown(metric: Metric, estimate: Estimate) -> dict[str, Any]:
    """Return value and interval in the metric's unit."""
    interval = estimate.interval and (
        metric.scale * estimate.interval[0],
        metric.scale * estimate.interval[1],
    )
    return {"value": metric.scale * estimate.value, "interval": interval}


def dropped_documents(data: str, asked: Sequence[MeasuredQuestion], context_length: int) -> str:
    n_documents = sum(len(one.question.documents) for one in asked)
    n_dropped = sum(one.n_dropped for one in asked)
    n_questions = sum(one.n_dropped > 0 for one in asked)
    n_bare = sum(not one.prompt.documents for one in asked)
    text = f"{data}: {n_dropped} of {n_documents} documents did not fit the context of {context_length} tokens"
    if n_dropped:
        text += f" and were dropped whole from the end, in {n_questions} of {len(asked)} questions"
    if n_bare:
        text += f"; {n_bare} questions were asked without any document"
    return text + "."
