"""The set of plain questions fits its documents, and answers are told right from wrong."""

import sys
from pathlib import Path

import pytest
from hypic_eval.modes import parse_mode
from hypic_eval.plain_use import DOCUMENTS, PlainQuestion, contains, read_set, run_plain_use

from hypic_rag.config import Settings
from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.errors import BadInput
from hypic_rag.retrieval.readers import ReadFailure, read_path

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny

SET = Path(__file__).parent.parent / "data/plain_use"
FOUND, RIGHT = 50, 20  # of 54 and of 60
ASKED = PlainQuestion("1", "How much is it?", ("1,650", "thirty"), "lease.txt", ("1,650",))
NONE = PlainQuestion("2", "What is the salary?", ())
ANSWERS = {  # question, answer, whether it is right
    "the number": (ASKED, "1650", True),
    "in a sentence": (ASKED, "The rent is $1,650.00 a month.", True),
    "in other words": (ASKED, "Thirty.", True),
    "a longer number": (ASKED, "$11,650", False),
    "part of a number": (ASKED, "1650.50", False),
    "another": (ASKED, "1,560", False),
    "nothing": (ASKED, "", False),
    "both": (ASKED, "The documents do not say: 1650?", False),
    "none is, and it says so": (NONE, "The documents do not say.", True),
    "none is, but it tells one": (NONE, "$60", False),
}
PHRASES = {  # text, phrase, whether it stands there
    "units": ("at 34C", "34", True),
    "times": ("closes at 14:00.", "14:00", True),
    "a code": ("claim C-20917)", "C-20917", True),
    "dates": ("on 30 June 2026", "30 June", True),
    "across a line end": ("coconut milk\n  separates", "coconut milk separates", True),
    "a word within a word": ("unknown", "no", False),
}


@pytest.mark.parametrize("question, answer, right", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_right_or_wrong(question: PlainQuestion, answer: str, right: bool) -> None:
    assert question.is_right(answer) is right


@pytest.mark.parametrize("text, phrase, there", PHRASES.values(), ids=PHRASES)
def test_a_phrase_is_found_word_by_word(text: str, phrase: str, there: bool) -> None:
    assert contains(text, [phrase]) is there


def test_the_sets_documents_are_read_and_have_the_answers() -> None:
    questions = read_set(SET)
    assert (len(questions), len({one.id for one in questions})) == (60, 60)
    assert sum(not one.document for one in questions) == 6
    texts: dict[str, str] = {}
    for document in read_path(SET / DOCUMENTS):
        assert not isinstance(document, ReadFailure)
        name = Path(document.metadata["path"]).name
        texts[name] = texts.get(name, "") + f"\n{document.text}"
    assert len(texts) == 20
    assert set(texts) == {one.document for one in questions} - {""}
    for one in questions:
        assert not one.document or contains(texts[one.document], one.evidence), one


def test_plain_questions_are_answered(default_model_folder: Path, tmp_path: Path) -> None:
    """With all defaults, end to end. The least that is asked for is two below what was measured: others' processors
    round otherwise. It is far from the 51 of 60 that are wanted: the default model errs with the evidence before it."""
    engine = SegmentEngine.from_pretrained(default_model_folder, policy=Policy())
    results = run_plain_use(engine, SET, [parse_mode("hypic")], Settings(), tmp_path / "store")
    shares = {row.metric: row.value * row.n / 100 for row in results.rows if row.unit == "%"}
    assert shares["evidence found"] >= FOUND, results.details
    assert shares["right"] >= RIGHT, results.details


@pytest.mark.parametrize("order, rank", [("nearest-first", 1), ("nearest-last", 3)])
def test_questions_are_answered_by_the_settings(tmp_path: Path, order: str, rank: int) -> None:
    import tiny

    (tmp_path / DOCUMENTS).mkdir()
    for name, text in {"a": "The ferry leaves at nine.", "b": "The harbour is deep.", "c": "A lake has fish."}.items():
        (tmp_path / DOCUMENTS / f"{name}.txt").write_text(text)
    (tmp_path / "questions.jsonl").write_text(
        '{"id": 1, "question": "When leaves the ferry?", "answers": ["nine"], "document": "a.txt"}'
    )
    settings = Settings(top_k=3, order=order, min_similarity=-1.0, search="dense", max_new_tokens=2)
    modes = [parse_mode("full")]
    results = run_plain_use(tiny.engine("qwen3_5_text"), tmp_path, modes, settings, tmp_path / "store")
    [told] = results.details
    assert (told["passages"], told["evidence"]) == (3, rank)
    assert results.rows[0].settings["order"] == order and results.rows[0].settings["search"] == "dense"


BAD = {  # a line of questions.jsonl, what is said of it
    "no answers": ('{"id": 1, "question": "?", "answers": [], "document": "a.txt"}', "or neither"),
    "no document": ('{"id": 1, "question": "?", "answers": ["x"]}', "or neither"),
    "a document that is not there": ('{"id": 1, "question": "?", "answers": ["x"], "document": "b.txt"}', "b.txt"),
    "no question": ('{"id": 1, "answers": []}', "line 1"),
}


@pytest.mark.parametrize("line, words", BAD.values(), ids=BAD)
def test_a_set_that_does_not_fit_is_refused(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / DOCUMENTS).mkdir()
    (tmp_path / DOCUMENTS / "a.txt").write_text("x")
    (tmp_path / "questions.jsonl").write_text(line)
    with pytest.raises(BadInput, match=words):
        read_set(tmp_path)
