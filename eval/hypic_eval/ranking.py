"""Scores of a ranking, the best first, against the set of what should be found. Each from 0 to 1.

Source: Manning, Raghavan and Schuetze, Introduction to Information Retrieval, 2008, chapter 8; nDCG: Jaervelin and
Kekaelaeinen, TOIS 2002, with gains of 0 and 1.
"""

import math
from collections.abc import Sequence


def recall(ranked: Sequence[int], gold: frozenset[int], k: int) -> float:
    """Return the share of ``gold`` (not empty) among the first ``k``."""
    return len(gold.intersection(ranked[:k])) / len(gold)


def reciprocal_rank(ranked: Sequence[int], gold: frozenset[int], k: int) -> float:
    """Return 1 / the rank of the first of ``gold`` among the first ``k``; 0 where there is none."""
    return next((1 / rank for rank, i in enumerate(ranked[:k], start=1) if i in gold), 0.0)


def ndcg(ranked: Sequence[int], gold: frozenset[int], k: int) -> float:
    """Return the discounted gain of the first ``k``, of the greatest that there could be."""
    gain = sum(1 / math.log2(rank + 1) for rank, i in enumerate(ranked[:k], start=1) if i in gold)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(gold)) + 1))
