"""Prompts to calibrate on: rows with a question and documents, or consecutive chunks of any documents."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypic_rag.errors import BadInput
from hypic_rag.paths import absolute
from hypic_rag.prompt import Prompt, PromptFormat, fit_documents
from hypic_rag.retrieval.chunking import split_document
from hypic_rag.retrieval.readers import ReadFailure, read_path
from hypic_rag.retrieval.readers.document import clean
from hypic_rag.retrieval.readers.jsonl import text_lines

Pair = tuple[str, str]  # title and text
PASSAGE_CHARACTERS = 60
MIN_DOCUMENTS = 2  # with one there is no document before another, and nothing of reuse to measure


def sample_prompts(
    path: str | os.PathLike[str],
    format: PromptFormat,
    *,
    limit: int,
    n_documents: int,
    chunk_tokens: int,
    max_tokens: int,
) -> list[Prompt]:
    """Make the first ``limit`` prompts of a file or folder, each of at most ``max_tokens`` tokens.

    A jsonl file whose rows have ``question`` and ``docs`` gives a prompt a row, over its documents in chunks of at
    most ``chunk_tokens``. From everything else that ``ingest`` reads, ``n_documents`` consecutive chunks make a
    prompt, and the question is how a passage from the middle of one of them goes on.
    Documents that do not fit ``max_tokens`` are left out, the last first. Raises BadInput where the path does not
    exist, a row is malformed, or there is not enough text for one prompt.
    """
    rows = _question_rows(absolute(path))
    if rows is not None:
        asked: Iterator[tuple[str, list[Pair], str]] = (
            (question, _chunks(documents, format, chunk_tokens), where) for question, documents, where in rows
        )
    else:
        asked = _consecutive(path, format, n_documents, chunk_tokens)
    prompts = []
    for question, documents, where in itertools.islice(asked, limit):
        prompt, _ = fit_documents(format.prompt(question, documents), max_tokens)
        if prompt.n_tokens > max_tokens or len(prompt.documents) < MIN_DOCUMENTS:
            raise BadInput(
                f"{where}: of {len(documents)} documents {len(prompt.documents)} fit a prompt of {max_tokens} tokens, "
                f"and calibration needs {MIN_DOCUMENTS}. Give more text, or smaller chunks (--chunk-tokens)"
            )
        prompts.append(prompt)
    if not prompts:
        raise BadInput(f"{path} has no row with a question and documents: give one with text to calibrate on")
    return prompts


def _question_rows(path: Path) -> Iterator[tuple[str, list[Pair], str]] | None:
    """Yield (question, documents, place in the file) of each row; None where the path is no file of questions."""
    if path.suffix.lower() != ".jsonl" or not os.path.isfile(path):
        return None  # or nothing that can be read, which read_path tells
    lines = [(number, line) for number, line in enumerate(text_lines(path), 1) if line.strip()]
    if not lines or not {"question", "docs"} <= _row(path, *lines[0]).keys():
        return None
    return (_question_row(path, number, line) for number, line in lines)


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}, line {number}: is not JSON: {error}. Mend the line or take it out") from error
    if not isinstance(row, dict):
        raise BadInput(f"{path}, line {number}: is a JSON {type(row).__name__}, not an object with question and docs")
    return row


def _question_row(path: Path, number: int, line: str) -> tuple[str, list[Pair], str]:
    where = f"{path}, line {number}"
    row = _row(path, number, line)
    question, docs = row.get("question"), row.get("docs")
    if not isinstance(question, str) or not question.strip():
        raise BadInput(f"{where}: has no question. Wanted: {{'question': ..., 'docs': [{{'title', 'text'}}, ...]}}")
    if not isinstance(docs, list) or not all(isinstance(d, dict) and isinstance(d.get("text"), str) for d in docs):
        raise BadInput(f"{where}: docs must be a list of objects with a text, {{'title': ..., 'text': ...}}")
    return clean(question), [(str(d.get("title") or ""), clean(d["text"])) for d in docs], where


def _chunks(documents: Sequence[Pair], format: PromptFormat, chunk_tokens: int) -> list[Pair]:
    return [
        (chunk.title, chunk.text)
        for title, text in documents
        for chunk in split_document(title, text, format, chunk_tokens)
    ]


def _consecutive(
    path: str | os.PathLike[str], format: PromptFormat, n_documents: int, chunk_tokens: int
) -> Iterator[tuple[str, list[Pair], str]]:
    """Group chunks in the order of the text, read no further than asked for; the last group may be smaller."""
    failures: list[ReadFailure] = []
    chunks = _all_chunks(path, format, chunk_tokens, failures)
    n_groups = 0
    while group := list(itertools.islice(chunks, max(n_documents, MIN_DOCUMENTS))):
        if n_groups and len(group) < MIN_DOCUMENTS:
            return
        _, text = group[n_groups % len(group)]  # every place in the prompt is asked about in turn
        yield _asked(_passage(text)), group, str(path)
        n_groups += 1
    if not n_groups:
        why = f" ({failures[0]})" if failures else ""
        raise BadInput(f"{path} has no text to calibrate on{why}: give a file or folder of documents")


def continued(text: str) -> tuple[str, str] | None:
    """Return a question of how a passage from the middle of a text goes on, and what does; None of a short one."""
    passage = _passage(text)
    words = text.split()
    said = passage.split()
    for i in range(len(words) - len(said)):
        if words[i : i + len(said)] == said:
            follows = words[i + len(said) :]
            return (_asked(passage), " ".join(follows)) if len(said) > 2 and len(follows) > 2 else None
    return None


def _asked(passage: str) -> str:
    return f'Which words follow "{passage}" in the documents?'


def _passage(text: str) -> str:
    """Cut out some words that end in the middle of the text, where no seam reaches."""
    blank = text.find(" ", len(text) // 2)
    end = blank if blank > 0 else len(text) // 2
    start = max(0, end - PASSAGE_CHARACTERS)
    if start:
        start = text.find(" ", start, end) + 1 or start
    return " ".join(text[start:end].split())


def _all_chunks(
    path: str | os.PathLike[str], format: PromptFormat, chunk_tokens: int, failures: list[ReadFailure]
) -> Iterator[Pair]:
    for document in read_path(path):
        if isinstance(document, ReadFailure):
            failures.append(document)
        else:
            yield from _chunks([(document.title, document.text)], format, chunk_tokens)
