"""Retrieval in the loop: what is pooled, what a question is asked over, and how much of its answer was found."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import parse_modes
from hypic_eval.quality import run_quality
from hypic_eval.retrieved import AskRetrieved, gold_found
from hypic_eval.rows import RowFile
from hypic_eval.task import Question, read_questions

from hypic_rag.rag import Passage

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
    [asked] = AskRetrieved(3, tmp_path / "stores")(engine, few, task, questions[:1])
    everything = {document for question in questions for document in question.documents}
    assert len(asked.question.documents) == len(asked.prompt.documents) == 3
    assert set(asked.question.documents) <= everything
    assert asked.about["retrieved"] == 3 and 0 < asked.about["gold_found"] <= 1
    results = run_quality(
        engine, [few], parse_modes("none,hypic"), rows, limit=2, asking=AskRetrieved(3, tmp_path / "stores")
    )
    assert len(list((tmp_path / "stores").iterdir())) == 1  # made once
    told: list[Any] = [note for note in results.notes if "were among the 3 retrieved (n=2)" in note]
    assert len(told) == 1
    assert {row.data for row in results.rows} == {"hotpotqa_few, 3 retrieved"}
    assert {row["retrieved"] for row in rows.rows.values()} == {3}
