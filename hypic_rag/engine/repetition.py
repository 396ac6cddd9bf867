"""Decoding that goes round in circles, as greedy decoding of small models does: told from the tokens alone."""

from collections.abc import Sequence

MAX_PERIOD = 64
MIN_ROUNDS = 3
MIN_TOKENS = 32


def is_cycling(tokens: Sequence[int]) -> bool:
    """Return whether the last tokens are one run, of at most MAX_PERIOD, said over and over: MIN_ROUNDS times at least,
    and MIN_TOKENS in all.

    Cost: one comparison a period where nothing repeats. A list of a few equal numbers or a line of dashes is too short
    to count; a refrain that stands three times in a row counts.
    """
    n = len(tokens)
    for period in range(1, min(MAX_PERIOD, n // MIN_ROUNDS) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        span = max(MIN_ROUNDS * period, MIN_TOKENS)
        if span <= n and tokens[n - span : n - period] == tokens[n - span + period :]:
            return True
    return False
