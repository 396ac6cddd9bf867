"""Where the documents hold no answer, that is known and told alike."""

import pytest
from hypic_apps.report import answer_fields, answer_text

from hypic_rag.engine import Generation, Policy
from hypic_rag.engine.outputs import Report, SegmentUse
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.session import Answer
from hypic_rag.rag.unanswered import NOTHING_RELEVANT, is_answer

TEXTS = {  # text, whether it answers
    "the sentence": ("The documents do not say.", False),
    "without its stop, in quotes, between blanks": (' "the documents do not say"\n', False),
    "of one document": ("The document does not say.", False),
    "shortened": ("The documents don’t say.", False),
    "and what": ("The documents do not say who signed the treaty.", False),
    "the program's own": (NOTHING_RELEVANT, False),
    "a name": ("Ada Marsh", True),
    "of what documents do not say": ("What the documents do not say is in the annex.", True),
    "and yet an answer": ("The documents do not say who, but the letter is of 1650.", True),
    "and then an answer": ("The documents do not say so. It was 1650.", True),
    "of others": ("The letters do not say.", True),
    "nothing": ("", True),
}


@pytest.mark.parametrize("text, answers", TEXTS.values(), ids=TEXTS)
def test_one_sentence_says_that_there_is_no_answer(text: str, answers: bool) -> None:
    assert is_answer(text) is answers


def answer(text: str) -> Answer:
    report = Report(Policy(), 90, 30, 0, (SegmentUse(40, "disk"),), 0.0, 1.0, 1.0)
    passage = Passage("Lease", "…", 0.5, metadata={"path": "/docs/lease.pdf", "doc_id": "a", "ordinal": 0})
    return Answer("Who?", text, (passage,), generation=Generation(text, (1,), "stop", report))


def test_what_was_read_is_no_source_of_an_answer_that_there_is_none() -> None:
    answered, not_answered = (answer_fields(answer(text)) for text in ("Ada Marsh", "The documents do not say."))
    assert (answered["answered"], not_answered["answered"]) == (True, False)
    assert "\nSources:\n  1. Lease" in answer_text(answered)
    assert "Sources" not in answer_text(not_answered) and "none of them says it:\n  1. Lease" in answer_text(
        not_answered
    )
    assert answer_fields(Answer("Who?", NOTHING_RELEVANT))["answered"] is False


PAGES = {"7": "/docs/lease.pdf, page 7  (", "7–8": "/docs/lease.pdf, pages 7–8  (", "": "/docs/lease.pdf  ("}


@pytest.mark.parametrize("label, told", PAGES.items(), ids=PAGES)
def test_a_source_is_told_with_its_page(label: str, told: str) -> None:
    one = answer("Ada Marsh")
    one.sources[0].metadata["page_label"] = label  # type: ignore[index]
    fields = answer_fields(one)
    assert fields["sources"][0]["page_label"] == (label or None) and told in answer_text(fields)
