"""Extents against a row of flags: the first stretch that is long enough, nothing twice, neighbours joined."""

import random

import pytest

from hypic_rag.cache.tiers.free_list import FreeList

CASES = {  # size, align, steps, what each take gives; "take n" or "give at n"
    "from the start": (64, 16, "take 16, take 32", [0, 16]),
    "rounded up": (64, 16, "take 1, take 17, take 1", [0, 16, 48]),
    "size rounded down": (63, 16, "take 48, take 1", [0, None]),
    "full": (64, 16, "take 64, take 1", [0, None]),
    "too long": (64, 16, "take 65", [None]),
    "nothing of nothing": (0, 16, "take 0, take 1", [0, None]),
    "nothing of something": (32, 16, "take 0, take 32, take 0", [0, 0, 0]),
    "the first hole that fits": (96, 16, "take 16, take 16, take 32, take 32, give 0 16, give 32 32, take 32, take 16",
                                 [0, 16, 32, 64, 32, 0]),
    "joined with what is before": (48, 16, "take 16, take 16, take 16, give 0 16, give 16 16, take 32", [0, 16, 32, 0]),
    "joined with what is after": (48, 16, "take 16, take 16, take 16, give 16 16, give 0 16, take 32", [0, 16, 32, 0]),
    "joined with both": (48, 16, "take 16, take 16, take 16, give 0 16, give 32 16, give 16 16, take 48",
                         [0, 16, 32, 0]),
    "claimed": (96, 16, "claim 32 16, take 16, take 48, take 20, give 32 16, take 16", [0, 48, None, 16]),
    "claimed at the ends": (64, 16, "claim 0 16, claim 48 16, take 33, take 32", [None, 16]),
    "given back rounded up": (32, 16, "take 20, give 0 20, take 32", [0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("size, align, steps, given", CASES.values(), ids=CASES)
def test_what_is_given(size, align, steps, given):
    extents, got = FreeList(size, align), []
    for step in steps.split(", "):
        verb, *numbers = step.split()
        result = getattr(extents, verb)(*map(int, numbers))
        got += [result] if verb == "take" else []
    assert got == given


@pytest.mark.parametrize("align", [1, 16])
def test_thousands_of_steps_equal_a_row_of_flags(align):
    chance, size = random.Random(align), 1003
    extents, taken, is_taken = FreeList(size, align), [], [False] * (size - size % align)
    for step in range(5000):
        if chance.random() < 0.55:
            n = chance.randrange(1, 120)
            rounded = -(-n // align) * align
            starts = range(0, len(is_taken) - rounded + 1, align)
            wanted = next((at for at in starts if not any(is_taken[at : at + rounded])), None)
            assert extents.fits(n) == (wanted is not None)
            assert extents.take(n) == wanted
            if wanted is not None:
                taken.append((wanted, n))
                is_taken[wanted : wanted + rounded] = [True] * rounded
        elif taken:
            at, n = taken.pop(chance.randrange(len(taken)))
            rounded = -(-n // align) * align
            is_taken[at : at + rounded] = [False] * rounded
            extents.give(at, n)
        if step % 100 == 0:
            copy = extents.copy()
            for at in range(0, len(is_taken), align):
                if not is_taken[at]:
                    copy.claim(at, align)
            assert not copy.fits(1)


def test_a_copy_goes_its_own_way():
    extents = FreeList(32)
    copy = extents.copy()
    assert copy.take(32) == 0 and extents.take(32) == 0
    copy.give(0, 32)
    assert not extents.fits(1)


@pytest.mark.parametrize("at, n", [(0, 9), (4, 8), (8, 8), (12, 2), (28, 4)])
def test_nothing_is_given_back_that_is_free(at, n):
    extents = FreeList(32)
    extents.claim(0, 8)
    extents.claim(16, 8)
    with pytest.raises(AssertionError, match="were free already"):
        extents.give(at, n)


@pytest.mark.parametrize("at, n", [(0, 8), (4, 8), (8, 9), (12, 20), (30, 4)])
def test_nothing_is_claimed_that_is_taken(at, n):
    extents = FreeList(32)
    extents.claim(0, 8)
    extents.claim(16, 8)
    with pytest.raises(AssertionError, match="are not all free"):
        extents.claim(at, n)
