"""Answer quality of several modes on several files, with intervals and paired differences to full."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_eval.gap_recovered import gap_recovered
from hypic_eval.intervals import HOW, Estimate, mean, median, paired_difference
from hypic_eval.machine import describe_machine
from hypic_eval.measure import MeasuredQuestion, ask, measure_all
from hypic_eval.metrics import METRICS
from hypic_eval.modes import FULL, NONE, Mode
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile
from hypic_eval.task import Question, Task, read_questions

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine


Asking = Callable[["SegmentEngine", Path, Task, Sequence[Question]], list[MeasuredQuestion]]
"""How questions of a file become prompts: over the documents that stand in their rows, or over retrieved ones."""


def ask_given(engine: "SegmentEngine", path: Path, task: Task, questions: Sequence[Question]) -> list[MeasuredQuestion]:
    """Ask over the documents of each row."""
    return [ask(engine, task, question) for question in questions]


def run_quality(
    engine: "SegmentEngine",
    paths: Sequence[Path],
    modes: Sequence[Mode],
    rows: RowFile,
    task_name: str | None = None,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    part: tuple[int, int] = (1, 1),
    asking: Asking = ask_given,
) -> Results:
    """Measure every question of every file in every mode.

    rows: where measured rows are kept; what it holds already is not run again.
    limit: only the first questions of each file. part: (i, n), of those every n-th from the i-th on.
    on_progress: called with the file's name, rows done and rows in all.
    """
    # All files are read before anything runs: a mistake in the last one should not cost an hour.
    files = [(path, *read_questions(path, task_name, limit)) for path in paths]
    result_rows: list[ResultRow] = []
    notes: list[str] = []
    for path, task, questions in files:
        asked = asking(engine, path, task, questions[part[0] - 1 :: part[1]])
        if not asked:
            notes.append(f"{path.stem}: part {part[0]} of {part[1]} has none of {len(questions)} questions.")
            continue
        name = path.stem
        asked = [replace(one, about={"data": name, **one.about}) for one in asked]

        def tick(done: int, total: int, name: str = name) -> None:
            on_progress(name, done, total)

        measured = measure_all(engine, asked, modes, rows, tick)
        of_file, of_gaps = summarise(engine, name, asked, measured)
        result_rows += of_file
        notes += [*of_gaps, dropped_documents(name, asked, engine.context_length), *gold_note(name, asked)]
    return Results("quality", describe_machine(), result_rows, notes)


def summarise(
    engine: "SegmentEngine", data: str, asked: Sequence[MeasuredQuestion], measured: Mapping[Mode, list[dict[str, Any]]]
) -> tuple[list[ResultRow], list[str]]:
    """Make a result row for each mode and metric of one task, and notes on what could not be told."""
    task = asked[0].task
    settings = {
        "fingerprint": engine.fingerprint,
        "prompt_format": engine.format.version,
        "context_length": engine.context_length,
        "max_new_tokens": task.max_new_tokens,
        "interval": HOW,
    }
    full, none = measured.get(FULL), measured.get(NONE)
    result: list[ResultRow] = []
    notes: list[str] = []
    for mode, rows in measured.items():

        def add(
            metric: str, arrow: str, unit: str, mode: Mode = mode, rows: list[dict[str, Any]] = rows, **more: Any
        ) -> None:
            about = {"dates": dates(rows), "policy": rows[0]["policy"], "machines": machines(rows)}
            where = (task.name, task.version, data, len(rows), str(mode), metric, arrow, unit)
            model = {"model": engine.model_name, "commit": commits(rows), "settings": {**settings, **about}}
            result.append(ResultRow(*where, **model, **more))

        for metric in (METRICS[name] for name in (*task.scores, "nll", "kl")):
            values = [row[metric.name] for row in rows]
            difference = None
            if full is not None and mode != FULL and metric.name != "kl":
                difference = metric.shown(paired_difference(values, [row[metric.name] for row in full]))
            add(metric.title, metric.arrow, metric.unit, **metric.shown(mean(values)), to_full=difference)
        if full is not None and none is not None and mode not in (FULL, NONE):
            for metric in (METRICS[name] for name in (next(iter(task.scores)), "nll")):
                share = gap_recovered(
                    *([row[metric.name] for row in some] for some in (rows, none, full)), metric.arrow
                )
                if isinstance(share, Estimate):
                    add(f"PGR ({metric.title})", "↑", "ratio", value=share.value, interval=share.interval)
                elif (note := f"{data}: no PGR of {metric.title}: {share}.") not in notes:
                    notes.append(note)
        ttft = median([row["ttft_ms"] for row in rows])
        add("time to first token", "↓", "ms", value=ttft.value, interval=ttft.interval)
    return result, notes


def gold_note(data: str, asked: Sequence[MeasuredQuestion]) -> list[str]:
    """Tell, where documents were retrieved, how many of those with the answer were found."""
    shares = [share for one in asked if (share := one.about.get("gold_found")) is not None]
    if not shares:
        return []
    found = mean(shares)
    within = "" if found.interval is None else f" [{100 * found.interval[0]:.1f}, {100 * found.interval[1]:.1f}]"
    return [
        f"{data}: of the documents with the answer, {100 * found.value:.1f}%{within} were among the "
        f"{asked[0].about['retrieved']} retrieved (n={len(shares)})."
    ]


def dates(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tell when the first and the last row were measured."""
    days = sorted(row["date"] for row in rows)
    return [days[0], days[-1]]


def machines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tell where rows were measured; times of several do not belong in one figure."""
    return sorted({row["machine"] for row in rows})


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
