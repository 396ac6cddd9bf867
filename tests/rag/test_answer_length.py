"""The limit of an answer where none was given."""

import time

import pytest

from hypic_rag.rag.answer_length import LONG, RULE, SHORT, USUAL, answer_tokens

QUESTIONS = {
    SHORT: (
        "Who signed the treaty?",
        "who is the landlord",
        "When was the bridge built?",
        "Where is the fair?",
        "How many steps does the tower have?",
        "How much is the deposit?",
        "How old was she when she died?",
        "Is the flat furnished?",
        "Are pets allowed?",
        "Have Françoise Dürr and Mate Pavić won a doubles title?",
        "Did they agree?",
        "In which year did it close?",
        "What year was that?",
        "What time does it open?",
        "By when must the rent be paid?",
        "To whom is it addressed?",
        "I have read the lease. Who signed it?",
        "And when?",
        '"Was it ever paid?"',
        "Can I cancel?",
    ),
    LONG: (
        "Summarize the documents.",
        "Summarise chapter two, please",
        "Please list the members.",
        "Describe the harbour.",
        "Explain how the pump works.",
        "Could you explain the refund policy?",
        "Can you please compare both offers?",
        "Give me a short summary of the minutes.",
        "Write an overview of the project.",
        "Tell me about the lighthouse.",
        "Tell me everything about the lighthouse.",
        "What are the main findings?",
        "Who signed it? Explain in detail.",
        "How do I install it, step by step?",
        "Here are my notes.\nOutline them.",
    ),
    USUAL: (
        "What is the refund policy?",
        "Why did the mill close?",
        "How does the pump work?",
        "Who are the members of the board?",
        "Who signed it, and why?",
        "When and how was it repaired?",
        "Is it true that all of them left?",
        "Which documents mention the pump?",
        "Name the capital.",
        "The list of members",
        "Wer hat den Vertrag unterschrieben?",
        "Whole wheat bread recipe",
        "Island names",
        "",
        " ?! ",
    ),
}


@pytest.mark.parametrize(
    "limit, question", [(limit, question) for limit, questions in QUESTIONS.items() for question in questions]
)
def test_the_limit_suits_the_question(limit: int, question: str) -> None:
    assert answer_tokens(question) == limit


def test_the_rule_says_the_limits() -> None:
    assert SHORT < USUAL < LONG and all(str(limit) in RULE for limit in (SHORT, USUAL, LONG))


@pytest.mark.parametrize("piece", ["please ", "give me a ", "can you ", "who, ", "\n. ", "a list of a "])
def test_a_long_text_takes_no_time(piece: str) -> None:
    began = time.perf_counter()
    answer_tokens(piece * 20_000)
    assert time.perf_counter() - began < 2
