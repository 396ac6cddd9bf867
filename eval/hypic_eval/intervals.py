"""Bootstrap intervals of means and of paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SEED = 20260701
N_RESAMPLES, RESAMPLES_A_TURN = 10_000, 1_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval; ``interval`` is None where one observation cannot give one."""

    value: float
    interval: tuple[float, float] | None


def mean(values: Sequence[float], seed: int = SEED) -> Estimate:
    """Compute mean and 95% percentile bootstrap interval over questions. Equal values and seed give equal results.

    values: one figure a question, at least one. Source: Efron and Tibshirani 1993, chapter 13.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("the mean of no values does not exist")
    if sample.size == 1:
        return Estimate(float(sample[0]), None)
    random = np.random.default_rng(seed)
    means = [
        sample[random.integers(0, sample.size, (RESAMPLES_A_TURN, sample.size))].mean(axis=1)
        for _ in range(N_RESAMPLES // RESAMPLES_A_TURN)
    ]
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    return Estimate(float(sample.mean()), (float(low), float(high)))


def paired_difference(values: Sequence[float], baseline: Sequence[float], seed: int = SEED) -> Estimate:
    """Compute the mean of ``values - baseline``, question by question, with its interval. Both in the same order."""
    if len(values) != len(baseline):
        raise ValueError(f"{len(values)} values cannot be paired with {len(baseline)} of the baseline")
    return mean(np.subtract(values, baseline).tolist(), seed)


def median(values: Sequence[float]) -> Estimate:
    """Compute median and, as its interval, the first and third quartile (None for one value)."""
    if not values:
        raise ValueError("the median of no values does not exist")
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), (25, 50, 75))
    return Estimate(float(middle), None if len(values) == 1 else (float(low), float(high)))
