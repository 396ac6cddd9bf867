"""Bootstrap intervals: repeatable, near the textbook's, and honest where there is nothing to say."""

import numpy as np
import pytest
from hypic_eval.intervals import mean, median, paired_difference


def test_an_interval_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(2.0, 1.0, 400)
    estimate = mean(values.tolist())
    assert estimate.value == pytest.approx(values.mean())
    margin = 1.96 * values.std() / np.sqrt(values.size)
    assert estimate.interval == pytest.approx((values.mean() - margin, values.mean() + margin), abs=0.01)


def test_equal_input_gives_equal_intervals() -> None:
    values = np.random.default_rng(3).normal(size=30).tolist()
    assert mean(values) == mean(values)
    assert mean(values) != mean(values, seed=1)


def test_paired_differences_are_sharper_than_the_values() -> None:
    base = np.random.default_rng(2).normal(0, 10, 100)
    difference = paired_difference((base + 1).tolist(), base.tolist())
    assert difference.value == pytest.approx(1.0)
    assert difference.interval == pytest.approx((1.0, 1.0))


def test_one_value_has_no_interval() -> None:
    assert mean([3.0]).interval is None
    assert median([3.0]).interval is None


def test_median_and_quartiles() -> None:
    estimate = median([5, 1, 4, 2, 3])
    assert (estimate.value, estimate.interval) == (3, (2, 4))


def test_no_values_and_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean([])
    with pytest.raises(ValueError, match="no values"):
        median([])
    with pytest.raises(ValueError, match="2 values cannot be paired with 1"):
        paired_difference([1, 2], [1])
