"""How a long ingestion leaves room for others: in bites of about so many seconds, each begun when it may."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

Item = TypeVar("Item")
Turn = Callable[[], AbstractContextManager[object]]


class Throttle:
    """seconds: that one bite should take. turn: entered for every bite; may wait, and may raise to end the work."""

    def __init__(self, seconds: float = float("inf"), turn: Turn = nullcontext):
        self.seconds = seconds
        self.turn = turn
        self._speed: dict[str, float] = {}  # of each kind of work, in its units a second

    def run(
        self,
        work: str,
        items: Sequence[Item],
        size: Callable[[Item], int],
        most: int,
        do: Callable[[Sequence[Item]], None],
    ) -> None:
        """Run ``do`` on all items in their order, some at a time: of at most ``most`` together and, as far as is known
        by now, of no more than take ``seconds``; a larger one alone. work: a name; each has a speed of its own.
        """
        start = 0
        while start < len(items):
            room = self._room(work, most)
            end, taken = start + 1, size(items[start])
            while end < len(items) and taken + size(items[end]) <= room:
                taken += size(items[end])
                end += 1
            with self.turn():
                began = time.perf_counter()
                do(items[start:end])
                self._speed[work] = taken / max(1e-6, time.perf_counter() - began)
            start = end

    def _room(self, work: str, most: int) -> int:
        if self.seconds == float("inf"):
            return most
        return int(min(most, self._speed.get(work, 0.0) * self.seconds))  # the first bite is one item
