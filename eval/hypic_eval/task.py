"""What a task is: how rows of a data file become questions, and how their answers are scored."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from hypic_rag.errors import BadInput
from hypic_rag.stored_json import parse_object

Row = Mapping[str, Any]
Document = tuple[str, str]
"""Title and text."""


@dataclass(frozen=True)
class Question:
    """One question with its documents in prompt order and the answers that count as right."""

    id: str
    text: str
    documents: tuple[Document, ...]
    answers: tuple[str, ...]
    gold: tuple[Document, ...] = ()
    """Those of the documents that the answer is in, as far as the data set tells."""


@dataclass(frozen=True)
class Task:
    """One way to ask and to score; each file of ``tasks/`` defines one as ``TASK``.

    datasets: beginnings of the ``dataset`` field of the rows it reads.
    read: row of the data file -> question.
    clean: raw generated text -> answer.
    scores: metric name (``metrics.METRICS``) -> function of the answer and the right answers.
    version: raised whenever a change alters any score.
    n_documents: to which questions are filled up with the documents of the rows behind them; None: not at all.
    """

    name: str
    version: int
    datasets: tuple[str, ...]
    max_new_tokens: int
    read: Callable[[Row], Question]
    clean: Callable[[str], str]
    scores: Mapping[str, Callable[[str, Sequence[str]], float]]
    n_documents: int | None = None


def all_tasks() -> dict[str, Task]:
    """Collect every task by name: the ``TASK`` of each file in ``tasks/``."""
    package = import_module("hypic_eval.tasks")
    modules = (import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__))
    return {module.TASK.name: module.TASK for module in modules}


def find_task(name: str) -> Task:
    """Return the task called ``name``. Raises BadInput with the nearest names if there is none."""
    tasks = all_tasks()
    if name not in tasks:
        near = get_close_matches(name, tasks) or sorted(tasks)
        raise BadInput(f"no task is called {name!r}; did you mean {' or '.join(near)}? All tasks: {', '.join(tasks)}")
    return tasks[name]


def task_of(path: Path, dataset: str) -> Task:
    """Return the task that reads rows whose ``dataset`` field is ``dataset``. Raises BadInput if none does."""
    for task in all_tasks().values():
        if dataset.startswith(task.datasets):
            return task
    known = ", ".join(f"{task.name} ({', '.join(task.datasets)})" for task in all_tasks().values())
    raise BadInput(
        f"{path}: no task reads data set {dataset!r}. Name one with --task. Tasks and what they read: {known}"
    )


def read_questions(path: Path, task_name: str | None = None, limit: int | None = None) -> tuple[Task, list[Question]]:
    """Read the task and first ``limit`` questions of a jsonl file: ``{id, question, docs, answers, dataset}``.

    task_name: asks for a task instead of finding it by the rows' ``dataset``.
    Raises BadInput, naming the line, where a row is not such an object.
    """
    rows = read_rows(path)
    try:
        task = find_task(task_name) if task_name else task_of(path, str(rows[0]["dataset"]))
    except KeyError:
        raise BadInput(f"{path}, line 1: no field 'dataset' tells the task. Name one with --task.") from None
    questions = []
    n_read = limit if limit is None or task.n_documents is None else limit + task.n_documents
    for number, row in enumerate(rows[:n_read], start=1):
        try:
            question = task.read(row)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise BadInput(f"{path}, line {number}: not a row of task {task.name}: {error!r}") from error
        if not question.text.strip() or not question.answers:
            raise BadInput(f"{path}, line {number}: a row needs a question and at least one answer")
        questions.append(question)
    if task.n_documents is not None:
        questions = [filled_up(questions, i, task.n_documents) for i in range(len(questions))[:limit]]
    return task, questions


def filled_up(questions: Sequence[Question], i: int, n_documents: int) -> Question:
    """Put documents of the questions behind the i-th, and then of the first, before and behind its own.

    Where its own stand is decided by its id. None comes twice; where there are not enough, there are fewer.
    """
    own = questions[i].documents
    others: list[Document] = []
    for other in (*questions[i + 1 :], *questions[:i]):
        others += [document for document in other.documents if document not in own and document not in others]
        if len(own) + len(others) >= n_documents:
            break
    others = others[: max(0, n_documents - len(own))]
    place = int(sha256(questions[i].id.encode()).hexdigest(), 16) % (len(others) + 1)
    return replace(questions[i], documents=(*others[:place], *own, *others[place:]))


def read_rows(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Read the first ``limit`` objects of a jsonl file. Raises BadInput for a missing, empty or malformed one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as UTF-8 text: {error}") from error
    rows: list[dict[str, Any]] = []
    # Not splitlines(): it also cuts at U+2028, which a JSON string may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or (limit is not None and len(rows) >= limit):
            continue
        try:
            rows.append(parse_object(line))
        except ValueError as error:
            raise BadInput(f"{path}, line {number}: no JSON object: {error}. Mend the line or take it out") from error
    if not rows:
        raise BadInput(f"{path} holds no rows; a jsonl file with one object a line is needed")
    return rows
