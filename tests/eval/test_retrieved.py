"""Retrieval in the loop: what is pooled, what a question is asked over, and how much of its answer was found."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import parse_modes
from hypic_eval.quality import run_quality
from hypic_eval.retrieved import AskRetrieved, gold_found
from hypic_eval.rows import RowFile
from hypic_eval.task import Question, read_questions

from hypic_rag.config import Settings
from hypic_rag.rag import Passage
from hypic_rag.rag.unanswered import NOTHING_RELEVANT

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny

GOLD = (("A", "Alpha is. Beta was."), ("B  C", "Gamma."))
FOUND = {  # sources, share
    "both": ([("A", "Alpha is. Beta was."), ("B C", "Gamma.")], 1.0),
    "a chunk of one": ([("A", "Beta was."), ("D", "Gamma.")], 0.5),
    "another text of that title": ([("A", "Delta.")], 0.0),
    "nothing": ([], 0.0),
}


@pytest.mark.parametrize("sources, share", FOUND.values(), ids=FOUND)
def test_how_much_was_found(sources: list[tuple[str, str]], share: float) -> None:
    question = Question("1", "Where?", GOLD, ("Here",), GOLD)
    assert gold_found(question, [Passage(*source) for source in sources]) == share


def test_where_no_gold_is_known_nothing_is_told() -> None:
    assert gold_found(Question("1", "Where?", GOLD, ("Here",)), [Passage("A", "Alpha is.")]) is None


def test_questions_are_asked_over_the_documents_of_all_rows(few: Path, tmp_path: Path) -> None:
    import tiny

    engine, rows = tiny.engine("qwen3_5_text"), RowFile(tmp_path / "rows.jsonl")
    task, questions = read_questions(few)
    asking = AskRetrieved(Settings(top_k=3), tmp_path / "stores")
    [asked] = asking(engine, few, task, questions[:1])
    everything = {document for question in questions for document in question.documents}
    assert len(asked.question.documents) == len(asked.prompt.documents) == 3
    assert set(asked.question.documents) <= everything
    assert asked.about["retrieved"] == 3 and 0 < asked.about["gold_found"] <= 1
    results = run_quality(engine, [few], parse_modes("none,hypic"), rows, limit=2, asking=asking)
    assert len(list((tmp_path / "stores").iterdir())) == 1  # made once
    told: list[Any] = [note for note in results.notes if "were among the 3 retrieved (n=2)" in note]
    assert len(told) == 1
    assert {row.data for row in results.rows} == {"hotpotqa_few, 3 retrieved"}
    assert {row["retrieved"] for row in rows.rows.values()} == {3}
    assert all(row.settings["searching"]["order"] == "nearest-last" for row in results.rows)


def test_the_products_settings_decide_what_is_asked_over(few: Path, tmp_path: Path) -> None:
    import tiny

    engine = tiny.engine("qwen3_5_text")
    task, questions = read_questions(few)

    def found(**settings: Any) -> list[tuple[str, str]]:
        asking = AskRetrieved(Settings(min_similarity=-1.0, **settings), tmp_path / "stores")
        [asked] = asking(engine, few, task, questions[:1])
        assert asked.about["searching"] == {**asked.about["searching"], **settings}
        return list(asked.question.documents)

    last, first = (found(top_k=4, order=order) for order in ("nearest-last", "nearest-first"))
    assert last != first and last == first[::-1]
    assert found(top_k=8, search="dense") != found(top_k=8, search="lexical")
    assert len(found(top_k=1, chunk_tokens=64)) == 1 < len(found(top_k=1, chunk_tokens=64, neighbours=1))
    assert found(top_k=1)[0][1] != found(top_k=1, chunk_tokens=64)[0][1]
    assert len(list((tmp_path / "stores").iterdir())) == 2  # one a size of chunks


def test_what_finds_nothing_is_answered_as_the_product_does(few: Path, tmp_path: Path) -> None:
    import tiny

    engine, rows = tiny.engine("qwen3_5_text"), RowFile(None)
    strict = AskRetrieved(Settings(min_similarity=1.0, search="dense"), tmp_path / "stores")
    few_rows = tmp_path / "off.jsonl"
    row = json.loads(few.read_text("utf-8").splitlines()[0])
    few_rows.write_text(json.dumps({**row, "question": "xylophone zebra quartz?"}))
    results = run_quality(engine, [few_rows], parse_modes("none,full,hypic"), rows, asking=strict)
    answers = {row["mode"]: row["answer"] for row in rows.rows.values()}
    assert answers["full"] == answers["hypic:w=8"] == NOTHING_RELEVANT
    assert answers["none"] != NOTHING_RELEVANT
    assert any("For 1 questions nothing relevant was found" in note for note in results.notes)
