"""Tasks read their rows; whatever else a file holds is told with its line."""

import json
import sys
from pathlib import Path
from typing import Any

import hypic_eval.tasks
import pytest
from hypic_eval.task import all_tasks, find_task, read_questions

from hypic_rag.errors import BadInput

ROW = {
    "id": "1",
    "question": "Where?",
    "docs": [{"title": "T", "text": "Text."}],
    "answers": ["Here"],
    "dataset": "hotpotqa_x",
}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_question_as_it_is_read(few: Path) -> None:
    task, questions = read_questions(few, limit=2)
    assert task.name == "qa"
    assert [len(question.documents) for question in questions] == [10, 10]
    assert questions[0].answers == ("Ericsson Stadium",)
    assert questions[0].documents[0][0] == "2011 OFC U-20 Championship squads"


CLEANED = {  # generated, answer
    "first line": ("Paris\nQuestion: more", "Paris"),
    "leading break": ("\n Paris ", "Paris"),
    "nothing": ("", ""),
    "only a line separator inside": ("a\u2028b", "a\u2028b"),
}


@pytest.mark.parametrize("text, answer", CLEANED.values(), ids=CLEANED)
def test_an_answer_is_the_first_line(text: str, answer: str) -> None:
    assert find_task("qa").clean(text) == answer


def test_news_have_line_breaks_and_our_question(tmp_path: Path) -> None:
    text = "One. NEWLINE_CHAR NEWLINE_CHAR Two.NEWLINE_CHARThree."
    row = ROW | {"dataset": "multinews_x", "docs": [{"title": "Passage 1", "text": text}]}
    task, [question] = read_questions(write(tmp_path / "news.jsonl", row))
    assert (task.name, question.text) == ("multinews", "Summarize the documents.")
    assert question.documents == (("Passage 1", "One.\n\nTwo.\nThree."),)


def test_a_new_file_is_a_new_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(hypic_eval.tasks.__file__).with_name("multinews.py").read_text()
    (tmp_path / "reports.py").write_text(source.replace('"multinews"', '"reports"'))
    monkeypatch.setattr(hypic_eval.tasks, "__path__", [*hypic_eval.tasks.__path__, str(tmp_path)])
    assert set(all_tasks()) == {"qa", "nq", "multinews", "govreport", "reports"}
    task, _ = read_questions(write(tmp_path / "rows.jsonl", ROW | {"dataset": "reports_2020"}))
    assert task.name == "reports"
    sys.modules.pop("hypic_eval.tasks.reports")


def test_bom_and_line_separators_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROW | {"question": "a\u2028b"}, ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    _, questions = read_questions(path)
    assert [question.text for question in questions] == ["a\u2028b", "Where?"]


BAD = {  # rows, what is told
    "another data set": ([ROW | {"dataset": "wmt"}], "--task"),
    "no data set": ([{key: value for key, value in ROW.items() if key != "dataset"}], "--task"),
    "no documents": ([ROW, {key: value for key, value in ROW.items() if key != "docs"}], "line 2"),
    "documents are no objects": ([ROW | {"docs": ["text"]}], "line 1"),
    "no answers": ([ROW | {"answers": []}], "at least one answer"),
    "empty question": ([ROW, ROW, ROW | {"question": " "}], "line 3"),
    "no rows": ([], "no rows"),
}


@pytest.mark.parametrize("rows, told", BAD.values(), ids=BAD)
def test_bad_rows_are_told(tmp_path: Path, rows: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read_questions(write(tmp_path / "rows.jsonl", *rows))


@pytest.mark.parametrize("content", [b"not json\n", b"[1]\n", b"\xff\xfe\x00"])
def test_files_of_another_kind_are_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(BadInput, match=r"rows\.jsonl"):
        read_questions(tmp_path / "rows.jsonl")


def test_an_unknown_task_gets_the_nearest_and_all() -> None:
    with pytest.raises(BadInput, match=r"multinews\?.*All tasks: govreport, multinews, nq, qa"):
        find_task("multinew")


def test_questions_of_one_passage_are_filled_up_with_those_behind_them(tmp_path: Path) -> None:
    rows = [
        ROW | {"id": str(i), "dataset": "nq_open_x", "docs": [{"title": f"T{i}", "text": "Text.", "gold": True}]}
        for i in range(12)
    ]
    path = write(tmp_path / "nq.jsonl", *rows)
    task, questions = read_questions(path)
    assert task.name == "nq" and len(questions) == 12
    titles = [[title for title, _ in question.documents] for question in questions]
    assert sorted(titles[0]) == sorted(f"T{i}" for i in range(10))
    assert sorted(titles[5]) == sorted(f"T{i}" for i in (*range(5, 12), 0, 1, 2))
    assert [question.gold for question in questions] == [((f"T{i}", "Text."),) for i in range(12)]
    places = {titles[i].index(f"T{i}") for i in range(12)}
    assert len(places) > 3  # the passage with the answer has no place of its own
    assert [title for title in titles[0] if title != "T0"] == [f"T{i}" for i in range(1, 10)]
    assert read_questions(path, limit=2)[1] == questions[:2]


def test_too_few_passages_are_all_there_are(tmp_path: Path) -> None:
    rows = [ROW | {"id": str(i), "dataset": "nq_open_x", "docs": [{"title": "T", "text": "Same."}]} for i in range(2)]
    _, questions = read_questions(write(tmp_path / "nq.jsonl", *rows))
    assert [question.documents for question in questions] == [(("T", "Same."),)] * 2


def test_a_report_is_cut_at_sentences(tmp_path: Path) -> None:
    sentences = [f"Sentence {i} {'x' * 900}." for i in range(5)]
    row = ROW | {"dataset": "govreport_x", "docs": [{"title": "report", "text": "\n".join(sentences)}]}
    task, [question] = read_questions(write(tmp_path / "reports.jsonl", row))
    assert task.name == "govreport"
    assert [title for title, _ in question.documents] == ["report, part 1", "report, part 2", "report, part 3"]
    assert [text for _, text in question.documents] == [" ".join(sentences[i : i + 2]) for i in (0, 2, 4)]
