"""Prompts to calibrate on: from rows with questions, from texts, and what cannot be one."""

import json
import re
from pathlib import Path

import pytest
from fake_engine import tokenizer

from hypic_rag.errors import BadInput
from hypic_rag.prompt import PromptFormat
from hypic_rag.retrieval.sample_prompts import sample_prompts

FORMAT = PromptFormat(tokenizer())
SIZES = {"limit": 8, "n_documents": 3, "chunk_tokens": 64, "max_tokens": 2000}


def told(prompt) -> str:
    return tokenizer().decode(prompt.token_ids)


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def row(n: int, n_docs: int = 3) -> dict[str, object]:
    docs = [{"title": f"Town {n}{i}", "text": f"Town {n}{i} lies on the river {i}."} for i in range(n_docs)]
    return {"question": f"Where does town {n}0 lie?", "docs": docs, "answers": ["on the river"]}


def test_a_row_with_a_question_is_a_prompt(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", *(row(n) for n in range(4)))
    prompts = sample_prompts(file, FORMAT, **{**SIZES, "limit": 3})
    assert len(prompts) == 3
    assert prompts[1] == FORMAT.prompt(
        "Where does town 10 lie?", [(f"Town 1{i}", f"Town 1{i} lies on the river {i}.") for i in range(3)]
    )


def test_long_documents_of_a_row_are_chunked_and_those_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    long = {"question": "What of the ships?", "docs": [{"title": "Ships", "text": "The ships sail far. " * 100}]}
    file = write_rows(tmp_path / "rows.jsonl", long)
    [whole] = sample_prompts(file, FORMAT, **SIZES)
    assert len(whole.documents) > 5 and max(map(len, whole.documents)) <= 64
    [fitted] = sample_prompts(file, FORMAT, **{**SIZES, "max_tokens": 250})
    assert fitted.documents == whole.documents[: len(fitted.documents)]
    assert 250 - 64 < fitted.n_tokens <= 250


def test_consecutive_chunks_of_a_text_are_prompts_in_order(tmp_path: Path) -> None:
    file = tmp_path / "voyage.txt"
    file.write_text(" ".join(f"On day {n} the ship had sailed {n * 31} miles from the harbour." for n in range(100)))
    prompts = sample_prompts(file, FORMAT, **SIZES)
    assert len(prompts) == 8
    assert all(len(prompt.documents) == 3 for prompt in prompts)
    assert "On day 0 " in told(prompts[0]) and "On day 0 " not in told(prompts[1])
    for n, prompt in enumerate(prompts):
        [passage] = re.findall(r'Question: Which words follow "(.*)" in the documents\?', told(prompt))
        asked_of = tokenizer().decode(prompt.documents[n % 3])
        assert 40 < len(passage) <= 60 and passage in asked_of
        assert asked_of.index(passage) > 30  # beyond the title and the first words
    segments = [ids for prompt in prompts for ids in prompt.documents]
    assert len(set(segments)) == len(segments)


def test_a_folder_asks_about_every_place_in_turn(tmp_path: Path) -> None:
    for name in ("ant", "bee", "cow", "dog", "elk", "fox", "gnu"):
        (tmp_path / f"{name}.txt").write_text(f"The {name} is an animal.")
    prompts = sample_prompts(tmp_path, FORMAT, **SIZES)
    assert len(prompts) == 2  # the last file alone is no prompt
    for prompt, name in zip(prompts, ("ant", "elk"), strict=True):
        assert f'Which words follow "The {name} is" in the documents?' in told(prompt)


def test_rows_without_questions_are_documents(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", *({"text": f"The number of house {n} is {n * n}."} for n in range(4)))
    [prompt] = sample_prompts(file, FORMAT, **SIZES)
    assert len(prompt.documents) == 3 and 'follow "The number of" in' in told(prompt)


def test_a_text_without_blanks_is_asked_about_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("船は港を出た。" * 60)
    [prompt, *_] = sample_prompts(tmp_path / "a.txt", FORMAT, **SIZES)
    [passage] = re.findall(r'follow "(.*)" in', told(prompt))
    assert passage and passage in "船は港を出た。" * 60


def test_no_more_is_read_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        (tmp_path / f"{n:02}.txt").write_text(f"House {n} is red.")
    read: list[str] = []
    import hypic_rag.retrieval.sample_prompts as module

    split = module.split_document
    monkeypatch.setattr(module, "split_document", lambda title, *rest: read.append(title) or split(title, *rest))
    assert len(sample_prompts(tmp_path, FORMAT, **{**SIZES, "limit": 2})) == 2
    assert len(read) == 6


BAD = {  # name and content of the file (None: there is none); the message
    "no such file": ("nothing.txt", None, "there is no file or folder"),
    "no such rows": ("nothing.jsonl", None, "there is no file or folder"),
    "empty text": ("a.txt", "", r"has no text to calibrate on \(.*is empty\)"),
    "empty rows": ("a.jsonl", "\n", r"has no text to calibrate on \(.*is empty\)"),
    "one chunk": ("a.txt", "The ship is red.", "1 documents 1 fit .* calibration needs 2"),
    "one document": ("a.jsonl", [row(0, n_docs=1)], "line 1: of 1 documents 1 fit"),
    "no document": ("a.jsonl", [row(0, n_docs=0)], "line 1: of 0 documents 0 fit"),
    "not JSON": ("a.jsonl", [row(0), "{"], "line 2: is not JSON"),
    "a list": ("a.jsonl", [row(0), []], "line 2: is a JSON list"),
    "no question": ("a.jsonl", [row(0), {"docs": []}], "line 2: has no question"),
    "blank question": ("a.jsonl", [{**row(0), "question": " "}], "line 1: has no question"),
    "docs are texts": ("a.jsonl", [{**row(0), "docs": ["a", "b"]}], "line 1: docs must be a list of objects"),
}


@pytest.mark.parametrize("name, content, message", BAD.values(), ids=BAD)
def test_what_gives_no_prompt_is_told(tmp_path: Path, name: str, content: object, message: str) -> None:
    if isinstance(content, list):
        write_rows(tmp_path / name, *content)
    elif content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message):
        sample_prompts(tmp_path / name, FORMAT, **SIZES)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(BadInput, match="cannot be read"):
        sample_prompts(tmp_path / "a.jsonl", FORMAT, **SIZES)


def test_too_little_room_is_told(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", row(0))
    with pytest.raises(BadInput, match="of 3 documents 0 fit a prompt of 50 tokens"):
        sample_prompts(file, FORMAT, **{**SIZES, "max_tokens": 50})
