"""Requests as they come to a server: when, by Poisson or in bursts, and over which documents, by Zipf."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hypic_eval.task import Document, Question
from hypic_rag.errors import BadInput

Arrivals = Literal["poisson", "bursty"]
SPREAD: dict[Arrivals, float] = {"poisson": 1.0, "bursty": 3.0}
"""Standard deviation of the gaps between arrivals, over their mean."""


def arrival_times(n: int, arrivals: Arrivals, seed: int) -> NDArray[np.float64]:
    """Draw the arrivals of n requests at a rate of 1: (n,), the first at 0 and the last at n - 1.

    Gaps are of a gamma distribution; where their spread is 1 that is a Poisson process. They are scaled to the rate
    exactly, as n is small: times of other rates are these, divided.
    """
    shape = SPREAD[arrivals] ** -2
    gaps = np.random.default_rng(seed).gamma(shape, 1 / shape, size=max(0, n - 1))
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    return times * ((n - 1) / times[-1]) if n > 1 else times


def zipf_draws(n: int, n_items: int, k: int, exponent: float, seed: int) -> NDArray[np.int64]:
    """Draw k different items n times, (n, k): the r-th most popular of ``n_items`` with weight ``r ** -exponent``.

    Items are numbered by popularity, from 0. Exponent 0 makes all alike.
    """
    if not 1 <= k <= n_items:
        raise BadInput(f"{k} different documents a request cannot be drawn from {n_items}: take fewer, or a larger set")
    weights = np.arange(1, n_items + 1, dtype=np.float64) ** -exponent
    rng = np.random.default_rng(seed)
    # The k largest of log(weight) + Gumbel noise are k draws without replacement.
    noisy = np.log(weights) + rng.gumbel(size=(n, n_items))
    return np.argsort(-noisy, axis=1)[:, :k]


def pool_of(questions: Sequence[Question], n_documents: int | None, seed: int) -> list[Document]:
    """Return the documents of all questions, each once, the most popular first: shuffled, and the first of them."""
    pool = list(dict.fromkeys(document for question in questions for document in question.documents))
    return [pool[i] for i in np.random.default_rng(seed).permutation(len(pool))][:n_documents]


def zipf_requests(
    questions: Sequence[Question], pool: Sequence[Document], n: int, k: int, exponent: float, seed: int
) -> list[Question]:
    """Ask the questions in turn, n times, each over k documents that are drawn from the pool by Zipf."""
    drawn = zipf_draws(n, len(pool), k, exponent, seed)
    return [
        Question(f"{i}", questions[i % len(questions)].text, tuple(pool[j] for j in row), ())
        for i, row in enumerate(drawn)
    ]
