"""Whether two ways take the same time, within a margin: two one-sided tests on paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypic_eval.intervals import SEED, interval
from numpy.typing import ArrayLike, NDArray

TRIM = 0.1


@dataclass(frozen=True)
class Equivalence:
    """difference: trimmed mean of the paired differences. interval: 90% of it. equivalent: the interval lies within
    plus and minus the margin, which is TOST at 5%."""

    difference: float
    interval: tuple[float, float]
    margin: float

    @property
    def equivalent(self) -> bool:
        return -self.margin < self.interval[0] and self.interval[1] < self.margin


def tost(values: Sequence[float], others: Sequence[float], margin: float, seed: int = SEED) -> Equivalence:
    """Test in pairs whether the mean difference is within the margin: two one-sided tests.

    values, others: measured in pairs, at least 10 of them. margin: more than 0, in their unit.

    The mean leaves out a tenth of the pairs at each end, the machine's hiccups; its interval is a percentile bootstrap
    over pairs. Equal input and seed give equal results. Source: Schuirmann 1987; Yuen 1974 for trimmed means.
    """
    if margin <= 0:
        raise ValueError(f"a margin of {margin} allows no difference at all")
    if len(values) != len(others) or len(values) < 10:
        raise ValueError(f"{len(values)} and {len(others)} values are not 10 pairs or more")
    differences = np.subtract(values, others).tolist()
    bounds = interval((differences,), _trimmed, seed, confidence=0.9)
    assert bounds is not None, "10 pairs have one"
    return Equivalence(float(_trimmed(differences)), bounds, margin)


def _trimmed(values: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    from scipy.stats import trim_mean

    means: NDArray[np.float64] = trim_mean(np.asarray(values), TRIM, axis=axis)
    return means
