"""Scores of rankings, against values worked out by hand."""

import math

import pytest
from hypic_eval.ranking import ndcg, recall, reciprocal_rank

SECOND = 1 / math.log2(3)
CASES = {  # ranked, gold, k: recall, reciprocal rank, nDCG
    "all at the top": ([4, 2, 9], {4, 2}, 3, 1.0, 1.0, 1.0),
    "one second": ([9, 4], {4}, 2, 1.0, 0.5, SECOND),
    "one of two, third": ([8, 9, 4], {4, 2}, 3, 0.5, 1 / 3, 0.5 / (1 + SECOND)),
    "beyond k": ([8, 9, 4], {4}, 2, 0.0, 0.0, 0.0),
    "more than k": ([1, 2], {1, 2, 3, 4}, 2, 0.5, 1.0, 1.0),
    "nothing found": ([], {1}, 5, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("ranked, gold, k, share, rank, gain", CASES.values(), ids=CASES)
def test_scores(ranked, gold, k, share, rank, gain):
    gold = frozenset(gold)
    assert recall(ranked, gold, k) == pytest.approx(share)
    assert reciprocal_rank(ranked, gold, k) == pytest.approx(rank)
    assert ndcg(ranked, gold, k) == pytest.approx(gain)
