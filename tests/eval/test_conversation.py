"""Conversations made of a set's rows: what each turn is asked behind, and what is told of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.conversation import AskInTurns
from hypic_eval.modes import parse_modes
from hypic_eval.quality import run_quality
from hypic_eval.rows import RowFile
from hypic_eval.task import read_questions

from hypic_rag.errors import ContextTooLong

Make = Callable[..., Any]


def test_a_turn_stands_behind_the_earlier_ones_with_their_right_answers(make_engine: Make, few: Path) -> None:
    """The oracle is the tokenizer's own chat template over the messages of the whole conversation."""
    engine = make_engine()
    task, questions = read_questions(few, limit=4)
    asked = AskInTurns(2)(engine, few, task, questions)
    assert [(one.question.id, one.about["turn"]) for one in asked] == [
        (question.id, turn) for question, turn in zip(questions, (1, 2, 1, 2), strict=True)
    ]
    messages = [{"role": "system", "content": engine.format.system}]
    for question in questions[2:]:
        over = "".join(f"Document: {title}\n{text.strip()}\n\n" for title, text in question.documents)
        messages += [
            {"role": "user", "content": f"{over}Question: {question.text}"},
            {"role": "assistant", "content": question.answers[0]},
        ]
    wanted = engine.format.tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert engine.format.tokenizer.decode(asked[3].prompt.token_ids) == wanted
    assert len(asked[3].prompt.documents) == 20 and asked[3].prompt.documents[:10] == asked[2].prompt.documents


def test_rows_left_over_are_not_asked_and_figures_are_by_turn(make_engine: Make, few: Path) -> None:
    results = run_quality(make_engine(), [few], parse_modes("full,hypic"), RowFile(None), limit=3, asking=AskInTurns(2))
    assert {(row.data, row.n) for row in results.rows} == {("hotpotqa_few, turn 1", 1), ("hotpotqa_few, turn 2", 1)}


def test_what_does_not_fit_is_told_with_its_turn(make_engine: Make, few: Path) -> None:
    with pytest.raises(ContextTooLong, match=r"turn 4 of 4, .*fewer --turns"):
        task, questions = read_questions(few)
        alone = max(one.prompt.n_tokens for one in AskInTurns(1)(make_engine(), few, task, questions))
        AskInTurns(4)(make_engine(context_length=2 * alone), few, task, questions)
