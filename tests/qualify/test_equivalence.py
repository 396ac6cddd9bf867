"""Two one-sided tests: what they call the same, and how often they are wrong."""

import numpy as np
import pytest
from hypic_qualify.equivalence import tost

N = 150
CASES = {  # shift, spread of the differences, margin; equivalent?
    "the same": (0.0, 1.0, 1.0, True),
    "a little apart": (0.4, 1.0, 1.0, True),
    "apart": (1.5, 1.0, 1.0, False),
    "the other way": (-1.5, 1.0, 1.0, False),
    "too noisy to tell": (0.0, 20.0, 1.0, False),
}


@pytest.mark.parametrize("shift, spread, margin, equivalent", CASES.values(), ids=CASES)
def test_what_is_the_same(shift: float, spread: float, margin: float, equivalent: bool) -> None:
    random = np.random.default_rng(3)
    drift = np.linspace(0, 100, N)  # of the machine, met by both
    others = drift + random.normal(0, 0.1, N)
    values = others + random.normal(shift, spread, N)
    found = tost(values.tolist(), others.tolist(), margin)
    assert found.equivalent == equivalent
    assert found.interval[0] <= found.difference <= found.interval[1]
    assert found == tost(values.tolist(), others.tolist(), margin)


def test_a_hiccup_of_the_machine_decides_nothing() -> None:
    random = np.random.default_rng(4)
    values = random.normal(0, 1, N)
    values[7] = 5000.0
    assert tost(values.tolist(), np.zeros(N).tolist(), 0.5).equivalent


def test_a_difference_of_the_margin_is_called_the_same_in_one_case_of_twenty() -> None:
    random = np.random.default_rng(5)
    wrong = sum(tost(random.normal(1.0, 2.0, N).tolist(), [0.0] * N, 1.0, seed).equivalent for seed in range(60))
    assert wrong <= 8  # 3 expected; more than 8 has a chance of 0.3%


def test_a_leak_to_a_fifth_of_the_requests_is_seen() -> None:
    random = np.random.default_rng(6)
    values = random.normal(0, 1, N)
    values[::5] -= 10.0  # as quick as a hit
    assert not tost(values.tolist(), [0.0] * N, 1.0).equivalent


@pytest.mark.parametrize("n, m, margin", [(9, 9, 1.0), (10, 11, 1.0), (10, 10, 0.0)])
def test_what_cannot_be_tested(n: int, m: int, margin: float) -> None:
    with pytest.raises(ValueError):
        tost([0.0] * n, [0.0] * m, margin)
