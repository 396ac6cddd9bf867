"""Bootstrap intervals of means, of paired differences, and of whatever else is made of paired samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

SEED = 20260701
N_RESAMPLES, RESAMPLES_A_TURN = 10_000, 1_000
HOW = f"95% bootstrap over questions, {N_RESAMPLES} resamples, seed {SEED}"

Statistic = Callable[..., NDArray[np.float64]]
"""Of samples (..., n), along ``axis``."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval; ``interval`` is None where one observation cannot give one."""

    value: float
    interval: tuple[float, float] | None


def mean(values: Sequence[float], seed: int = SEED) -> Estimate:
    """Mean and 95% percentile bootstrap interval over questions. Equal values and seed give equal results.

    values: one figure a question, at least one. Source: Efron and Tibshirani 1993, chapter 13.
    """
    if not len(values):
        raise ValueError("the mean of no values does not exist")
    sample = np.asarray(values, dtype=np.float64)
    return Estimate(float(sample.mean()), interval((sample,), np.mean, seed))


def paired_difference(values: Sequence[float], baseline: Sequence[float], seed: int = SEED) -> Estimate:
    """Mean of ``values - baseline``, question by question, with its interval. Both in the same order."""
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} values cannot be paired with {len(baseline)} of the baseline")
    return mean(np.subtract(values, baseline).tolist(), seed)


def interval(
    samples: Sequence[ArrayLike], statistic: Statistic, seed: int = SEED, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Resample pairs, and give the percentile interval of a statistic of them; None for fewer than two, or where a
    bound is not finite.

    samples: each of n figures, question by question. statistic: takes them along ``axis``.
    """
    from scipy.stats import bootstrap  # a second to import

    columns = [np.asarray(sample, dtype=np.float64) for sample in samples]
    if len(columns[0]) < 2:
        return None
    low, high = bootstrap(
        columns,
        statistic,
        n_resamples=N_RESAMPLES,
        batch=RESAMPLES_A_TURN,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return (float(low), float(high)) if np.isfinite([low, high]).all() else None


def median(values: Sequence[float]) -> Estimate:
    """Median and, as its interval, the first and third quartile (None for one value)."""
    if not values:
        raise ValueError("the median of no values does not exist")
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), (25, 50, 75))
    return Estimate(float(middle), None if len(values) == 1 else (float(low), float(high)))
