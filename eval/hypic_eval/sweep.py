"""One thing varied at a time: the number and size of segments, their order, the place of the answer, the seam.

A point of a sweep is the questions of a file, changed, in some modes: rows as everywhere, which tell axis and place.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_eval.machine import describe_machine
from hypic_eval.measure import ask, measure_all
from hypic_eval.modes import COMPOSE, Mode
from hypic_eval.results import ResultRow, Results
from hypic_eval.rows import RowFile
from hypic_eval.summary import dropped_documents, summarise
from hypic_eval.task import Document, Question, filled_up, read_questions
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.prompt import PromptFormat

VALUES = {
    "seam": (0, 4, 8, 16, 32, 64),
    "documents": (2, 5, 10, 20),
    "size": (64, 128, 256, 512, 1024),
    "order": (0, 1, 2, 3, 4),
    "gold": (0, 0.25, 0.5, 0.75, 1),
    "budget": (2, 5, 10, 20, 40, 60, 80, 100),
}
"""Axis -> where it is measured unless told otherwise. Whole numbers, but for ``gold``, 0 (first) to 1 (last), and
``budget``, in percent (cache_budget.py)."""


def run_sweep(
    engine: "SegmentEngine",
    path: Path,
    axis: str,
    values: Sequence[float],
    modes: Sequence[Mode],
    rows: RowFile,
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    part: tuple[int, int] = (1, 1),
) -> Results:
    """Measure the questions of a file at every value of an axis.

    ``seam`` varies the modes that have a seam, and measures the others once. Arguments as for ``run_quality``.
    Raises BadInput for values that the axis cannot have.
    """
    check(axis, values)
    task, questions = read_questions(path, limit=limit)
    result: list[ResultRow] = []
    notes: list[str] = []
    for name, x, point in points(axis, values, modes):
        changed = [vary(engine.format, axis, x, questions, i) for i in range(len(questions))[part[0] - 1 :: part[1]]]
        if not changed:
            raise BadInput(f"part {part[0]} of {part[1]} has none of the {len(questions)} questions")
        about = {"data": path.stem} if x is None else {"data": path.stem, "axis": axis, "x": x}
        asked = [replace(ask(engine, task, question), about=about) for question in changed]

        def tick(done: int, total: int, name: str = name) -> None:
            on_progress(name, done, total)

        measured = measure_all(engine, asked, point, rows, tick)
        of_point, of_gaps = summarise(engine, path.stem, asked, measured)
        result += [placed(row, axis, x) for row in of_point]
        notes += [f"{name}: {note}" for note in (*of_gaps, dropped_documents(path.stem, asked, engine.context_length))]
    return Results("sweep", describe_machine(), result, notes)


def points(
    axis: str, values: Sequence[float], modes: Sequence[Mode]
) -> list[tuple[str, float | None, tuple[Mode, ...]]]:
    """Name each point, with its place on the axis (None: on all of it) and the modes to measure there."""
    if axis != "seam":
        return [(f"{axis} {x:g}", x, tuple(modes)) for x in values]
    level = tuple(mode for mode in modes if mode.name not in COMPOSE)
    names = dict.fromkeys(mode.name for mode in modes if mode.name in COMPOSE)
    if not names:
        raise BadInput(f"none of the modes has a seam to vary; name {', '.join(COMPOSE)} among them")
    seams = [(f"seam {x:g}", x, tuple(Mode(name, int(x)) for name in names)) for x in values]
    return [("without a seam", None, level), *seams] if level else list(seams)


def check(axis: str, values: Sequence[float]) -> None:
    """Raise BadInput for values that the axis cannot have."""
    least, most = {"documents": (1, 1000), "size": (64, 65536), "gold": (0, 1), "budget": (0, 100)}.get(
        axis, (0, 65536)
    )
    in_parts = axis in ("gold", "budget")
    for x in values:
        if not least <= x <= most or (not in_parts and x != int(x)):
            kind = "a number" if in_parts else "a whole number"
            raise BadInput(f"{axis} cannot be {x:g}: give {kind} from {least} to {most}")


def vary(form: "PromptFormat", axis: str, x: float | None, questions: Sequence[Question], i: int) -> Question:
    """Change the i-th question to its place on the axis."""
    question = questions[i]
    if x is None or axis == "seam":
        return question
    if axis == "documents":
        return of_number(questions, i, int(x))
    if axis == "size":
        return replace(question, documents=resized(form, question.documents, int(x)))
    if axis == "order":
        return replace(question, documents=shuffled(question, int(x)))
    return replace(question, documents=with_gold_at(question, x))


def of_number(questions: Sequence[Question], i: int, n: int) -> Question:
    """Keep n documents, those with the answer before all others, in their order; or take those of other questions."""
    question = questions[i]
    if len(question.documents) < n:
        return filled_up(questions, i, n)
    others = [one for one in question.documents if one not in question.gold]
    kept = {*question.gold[:n], *others[: max(0, n - len(question.gold))]}
    return replace(question, documents=tuple(one for one in question.documents if one in kept)[:n])


def resized(form: "PromptFormat", documents: Sequence[Document], max_tokens: int) -> tuple[Document, ...]:
    """Cut documents at sentences, and put neighbours together, to segments of at most ``max_tokens`` tokens."""
    from hypic_rag.retrieval.chunking import split_document

    pieces = [
        (chunk.title, chunk.text)
        for title, text in documents
        for chunk in split_document(title, text, form, max_tokens)
    ]
    segments: list[Document] = []
    for title, text in pieces:
        if segments:
            joined = (segments[-1][0], f"{segments[-1][1]}\n\nDocument: {title}\n{text}")
            if len(form.document(joined[1], joined[0])) <= max_tokens:
                segments[-1] = joined
                continue
        segments.append((title, text))
    return tuple(segments)


def shuffled(question: Question, seed: int) -> tuple[Document, ...]:
    """Shuffle the documents, each question in its own way; 0 leaves them as they are."""
    documents = list(question.documents)
    if seed:
        random.Random(f"{seed} {question.id}").shuffle(documents)
    return tuple(documents)


def with_gold_at(question: Question, place: float) -> tuple[Document, ...]:
    """Move the documents with the answer, together, to a place among the others: 0 first, 1 last.

    Raises BadInput where the data set tells of none.
    """
    if not question.gold:
        raise BadInput(f"question {question.id}: none of its docs is marked gold; take another set")
    others = [one for one in question.documents if one not in question.gold]
    before = round(place * len(others))
    return (*others[:before], *question.gold, *others[before:])


def placed(row: ResultRow, axis: str, x: float | None) -> ResultRow:
    """Write a row's place on the axis into its mode and its settings."""
    name = row.mode.partition(":")[0] if axis == "seam" else row.mode
    mode = row.mode if x is None or axis == "seam" else f"{row.mode}, {axis} {x:g}"
    return replace(row, mode=mode, settings={**row.settings, "sweep": {"axis": axis, "x": x, "mode": name}})
