"""The set of plain questions fits its documents, and answers are told right from wrong."""

from pathlib import Path

import pytest
from hypic_eval.plain_use import DOCUMENTS, PlainQuestion, contains, read_set

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.readers import ReadFailure, read_path

SET = Path(__file__).parent.parent / "data/plain_use"
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
