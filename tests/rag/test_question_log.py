"""The log of questions, and files of questions."""

import threading
from pathlib import Path

import pytest

from hypic_rag.errors import BadInput
from hypic_rag.rag.question_log import FILE, log_question, logged_questions, read_questions


def test_what_is_logged_is_read_in_order(tmp_path: Path) -> None:
    assert logged_questions(tmp_path) == []
    asked = ["Who signed?", 'Say "yes"\nor no\u2028', "Wo liegt Köln?"]
    for question in asked:
        log_question(tmp_path, question)
    assert logged_questions(tmp_path) == [question.strip() for question in asked]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0  # nobody else may read them


def test_many_may_log_at_once(tmp_path: Path) -> None:
    def ask(n: int) -> None:
        for i in range(20):
            log_question(tmp_path, f"Question {n} {i}?")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(logged_questions(tmp_path))) == 80


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(BadInput, match="turn log_questions off"):
        log_question(tmp_path, "Who?")


def test_questions_stand_one_a_line_or_in_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Who?\n\n  Where? \n{\n", encoding="utf-8-sig")
    assert read_questions(tmp_path / "a.txt") == ["Who?", "Where?", "{"]
    (tmp_path / "a.jsonl").write_text('{"question": "Who?", "docs": []}\n\n{"question": "Where?"}')
    assert read_questions(tmp_path / "a.jsonl") == ["Who?", "Where?"]


BAD = {
    "not there": ("a.txt", None, "cannot be read"),
    "no text": ("a.txt", b"\xff\xfe\x00", "cannot be read"),
    "empty": ("a.txt", b"", "has no question"),
    "blank lines": ("a.jsonl", b"\n \n", "has no question"),
    "not JSON": ("a.jsonl", b"Who?", "line 1: is no JSON object with a 'question'"),
    "no field": ("a.jsonl", b'{"question": "Who?"}\n{"text": "a"}', "line 2: is no JSON object"),
    "a number": ("a.jsonl", b'{"question": 3}', "line 1: the question is empty or no text"),
}


@pytest.mark.parametrize("name, content, message", BAD.values(), ids=BAD)
def test_a_file_without_questions_is_told(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        read_questions(tmp_path / name)
