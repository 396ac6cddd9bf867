"""Answer quality of several modes on several files, with intervals and paired differences to full."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_eval.machine import describe_machine
from hypic_eval.measure import MeasuredQuestion, ask, measure_all
from hypic_eval.modes import Mode
from hypic_eval.results import ResultRow, Results
from hypic_eval.rows import RowFile
from hypic_eval.summary import dropped_documents, gold_note, summarise
from hypic_eval.task import Question, Task, read_questions

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine


Asking = Callable[["SegmentEngine", Path, Task, Sequence[Question]], list[MeasuredQuestion]]
"""How questions of a file become prompts: over the documents that stand in their rows, over retrieved ones, or as turns
of conversations."""


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
        for name, group in named(path.stem, asked).items():

            def tick(done: int, total: int, name: str = name) -> None:
                on_progress(name, done, total)

            measured = measure_all(engine, group, modes, rows, tick)
            of_file, of_gaps = summarise(engine, name, group, measured)
            result_rows += of_file
            notes += [*of_gaps, dropped_documents(name, group, engine.context_length), *gold_note(name, group)]
    return Results("quality", describe_machine(), result_rows, notes)


def named(stem: str, asked: Sequence[MeasuredQuestion]) -> dict[str, list[MeasuredQuestion]]:
    """Name what a file's questions are told under: by itself, with how many passages were retrieved, by turn."""
    groups: dict[str, list[MeasuredQuestion]] = {}
    for one in asked:
        name = stem
        if (n_retrieved := one.about.get("retrieved")) is not None:
            name += f", {n_retrieved} retrieved"
        if (turn := one.about.get("turn")) is not None:
            name += f", turn {turn}"
        groups.setdefault(name, []).append(replace(one, about={"data": name, **one.about}))
    return groups
