"""The questions that were asked of a store, one JSON line each; kept only where the setting log_questions is on."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from hypic_rag.errors import BadInput
from hypic_rag.paths import absolute, exists
from hypic_rag.retrieval.readers.jsonl import text_lines
from hypic_rag.stored_json import parse_object

FILE = "questions.jsonl"


def log_question(store_folder: Path, question: str) -> None:
    """Add a line. Several processes may; only the user may read the file. Raises BadInput where it cannot."""
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"question": question, "asked": asked}) + "\n"
    try:
        descriptor = os.open(store_folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BadInput(
            f"the question cannot be logged in {store_folder / FILE}: {error}. Mend it, or turn log_questions off"
        ) from error


def questions_to_ask(store_folder: Path | None, file: Path | None = None) -> list[str]:
    """Read the questions of the file, or those that were logged in the folder. Raises BadInput where there is none."""
    if file is not None:
        return read_questions(absolute(file))
    assert store_folder is not None
    logged = logged_questions(store_folder)
    if not logged:
        raise BadInput(
            f"no question was logged in {store_folder / FILE}: give --questions FILE, or set log_questions = true in "
            "HYPIC_HOME/config.toml and ask some"
        )
    return logged


def logged_questions(store_folder: Path) -> list[str]:
    """Read the logged questions in their order; none where nothing was logged. Raises BadInput
    for a file that cannot be read."""
    file = store_folder / FILE
    return read_questions(file) if exists(file) else []


def read_questions(file: Path) -> list[str]:
    """Read the questions of a file: one a line, or of jsonl (by its name) rows with ``question``.

    Raises BadInput for a file that is not there, has no question, or a line that is none.
    """
    is_json = file.suffix.lower() == ".jsonl"
    questions = [
        _question(line, f"{file}, line {number}") if is_json else line.strip()
        for number, line in enumerate(text_lines(file), 1)
        if line.strip()
    ]
    if not questions:
        raise BadInput(f"{file} has no question: write one a line, or jsonl rows with 'question'")
    return questions


def _question(line: str, where: str) -> str:
    try:
        question = parse_object(line)["question"]
    except (ValueError, KeyError) as error:
        raise BadInput(
            f"{where}: is no JSON object with a 'question': {error!r}. Mend the line or take it out"
        ) from error
    if not isinstance(question, str) or not question.strip():
        raise BadInput(f"{where}: the question is empty or no text. Mend the line or take it out")
    return question.strip()
