"""PGR, the share of what documents are worth that a mode keeps: (score - none) / (full - none)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hypic_eval.intervals import Estimate, interval, paired_difference


def gap_recovered(
    values: Sequence[float], none: Sequence[float], full: Sequence[float], arrow: str = "↑"
) -> Estimate | str:
    """Divide what a mode gains over no documents by what full recompute gains, of the means; or say why that means
    nothing.

    values, none, full: of one metric, question by question, in the same order. arrow: its good way.
    1 is full recompute, 0 no documents at all, below 0 worse than none. There is no PGR unless full recompute is better
    than none beyond noise: the 95% interval of that gap, paired, must lie above 0. What resamples are left with a gap
    of 0 or less (at most 2.5%) count as infinite, with the sign of the gain; a bound that falls among them makes the
    interval None. The interval is a bootstrap over questions with all three figures of each.
    Source: Performance Gap Recovered, KVShareArena, arXiv 2609.10266.
    """
    sign = 1.0 if arrow == "↑" else -1.0
    gap = paired_difference(full, none)
    low = None if gap.interval is None else min(sign * bound for bound in gap.interval)
    if low is None or low <= 0:
        told = "n=1" if gap.interval is None else f"[{gap.interval[0]:.3g}, {gap.interval[1]:.3g}]"
        return f"full - none is {gap.value:.3g} {told}: documents do not help beyond noise, and there is no gap to keep"
    ours, floor, ceiling = (sign * np.asarray(sample, dtype=np.float64) for sample in (values, none, full))
    return Estimate(float(_ratio(ours, floor, ceiling)), interval((ours, floor, ceiling), _ratio))


def _ratio(
    values: NDArray[np.float64], none: NDArray[np.float64], full: NDArray[np.float64], axis: int = -1
) -> NDArray[np.float64]:
    """Divide the means of samples in which more is better, along ``axis``."""
    floor = none.mean(axis=axis)
    gain, gap = values.mean(axis=axis) - floor, full.mean(axis=axis) - floor
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: NDArray[np.float64] = np.where(gap > 0, gain / gap, np.copysign(np.inf, gain))
    return ratio
