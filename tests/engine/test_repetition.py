"""Answers that go round in circles are ended, and no others."""

from itertools import cycle

import pytest
import tiny

from hypic_rag.engine import Sampling, SegmentEngine, scheduler
from hypic_rag.engine.repetition import MAX_PERIOD, MIN_TOKENS, is_cycling
from hypic_rag.prompt import Prompt

ROUND = [50, 90, 20, 70]
CASES = {  # tokens, whether they go round in circles
    "nothing": ([], False),
    "different tokens": ([*range(200)], False),
    "one token, a line of dashes": ([1, 2, *[3] * (MIN_TOKENS - 1)], False),
    "one token, on and on": ([1, 2, *[3] * MIN_TOKENS], True),
    "four tokens, seven times": ([1, *ROUND * 7], False),
    "four tokens, eight times": ([1, *ROUND * 8], True),
    "a round cut off in its middle": ([1, *ROUND * 8, 50, 90], True),
    "twenty tokens, twice": ([*range(20)] * 2, False),
    "twenty tokens, three times": ([*range(20)] * 3, True),
    "the same with one token changed": ([*range(20), *range(20), *range(19), 99], False),
    "the longest round": ([*range(MAX_PERIOD)] * 3, True),
    "one longer than that": ([*range(MAX_PERIOD + 1)] * 3, False),
    "a list that counts": ([token for n in range(30) for token in (7, 100 + n, 8)], False),
    "circles that were left again": ([*ROUND * 9, 1], False),
}


@pytest.mark.parametrize("tokens, cycles", CASES.values(), ids=CASES)
def test_cycles_are_told(tokens: list[int], cycles: bool) -> None:
    assert is_cycling(tokens) is cycles
    assert is_cycling(tuple(tokens)) is cycles


@pytest.mark.parametrize("heeded", [True, False])
def test_an_answer_in_circles_is_ended(
    gdn_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch, heeded: bool
) -> None:
    """As soon as it is told: after eight rounds of four tokens. Not where that is not wanted."""
    drawn = cycle(ROUND)
    monkeypatch.setattr(scheduler, "draw_each", lambda logits, how: [next(drawn) for _ in logits])
    sampling = Sampling(max_new_tokens=40, stop_repetition=heeded)
    generation = gdn_engine.generate(Prompt.build((), [tiny.ids(30, 1)], tiny.ids(10, 2)), sampling)
    want = ("repetition", MIN_TOKENS) if heeded else ("length", 40)
    assert (generation.finish_reason, len(generation.token_ids)) == want
