"""Stretches of a row of places: taken first fit, given back, and joined with their free neighbours."""

from bisect import bisect
from typing import Self


class FreeList:
    """``size`` places. Stretches begin and end at multiples of ``align``; what is asked for is rounded up to them.

    A call costs the number of free stretches, at most.
    """

    def __init__(self, size: int, align: int = 1):
        self.align = align
        size -= size % align
        self._free = [(0, size)] if size else []  # (start, stop), in order, none touching the next

    def copy(self) -> Self:
        other = type(self)(0, self.align)
        other._free = self._free.copy()
        return other

    def rounded(self, n: int) -> int:
        """Return how many places a stretch for ``n`` takes."""
        return -(-n // self.align) * self.align

    def fits(self, n: int) -> bool:
        """Return whether ``take(n)`` would find any."""
        return n == 0 or any(stop - start >= n for start, stop in self._free)

    def take(self, n: int) -> int | None:
        """Take ``n`` places in a row and return the first; None where no free stretch has as many. 0 of none."""
        if n == 0:
            return 0
        at = next((start for start, stop in self._free if stop - start >= n), None)
        if at is not None:
            self.claim(at, n)
        return at

    def claim(self, at: int, n: int) -> None:
        """Take the ``n`` places from ``at`` on, which are free."""
        if n == 0:
            return
        end = at + self.rounded(n)
        i = bisect(self._free, (at, float("inf"))) - 1
        start, stop = self._free[i] if i >= 0 else (0, 0)
        assert start <= at and end <= stop, f"places {at} to {end} are not all free"
        self._free[i : i + 1] = [(a, b) for a, b in ((start, at), (end, stop)) if a < b]

    def give(self, at: int, n: int) -> None:
        """Give back what ``take(n)`` or ``claim(at, n)`` took."""
        if n == 0:
            return
        start, stop = at, at + self.rounded(n)
        i = bisect(self._free, (start, stop))
        before, after = self._free[max(i - 1, 0) : i], self._free[i : i + 1]
        free_already = any(stop_before > start for _, stop_before in before) or any(a < stop for a, _ in after)
        assert not free_already, f"places {start} to {stop} were free already"
        if before and before[0][1] == start:
            i, start = i - 1, before[0][0]
        joins_after = bool(after) and after[0][0] == stop
        if joins_after:
            stop = after[0][1]
        n_joined = (start != at) + joins_after
        self._free[i : i + n_joined] = [(start, stop)]
