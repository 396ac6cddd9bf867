"""How a long ingestion leaves room for others: in bites of about so many seconds, each begun when it may."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Turn = Callable[[], AbstractContextManager[object]]


class Throttle:
    """seconds: that one bite should take. turn: entered for every bite; may wait, and may raise to end the work."""

    def __init__(self, seconds: float = float("inf"), turn: Turn = nullcontext):
        self.seconds = seconds
        self.turn = turn
        self._speed: dict[str, float] = {}  # of each kind of work, in its units a second

    def room(self, work: str, most: float = float("inf")) -> float:
        """Return how much may be done in a bite: at most ``most`` and, as far as is known, no more than takes
        ``seconds``. work: a name; each has a speed of its own."""
        if self.seconds == float("inf"):
            return most
        return min(most, self._speed.get(work, 0.0) * self.seconds)  # nothing is known of the first: it is one item

    @contextmanager
    def bite(self, work: str, size: int) -> Iterator[None]:
        """Stand around a bite of so much work, from which its speed is learned."""
        with self.turn():
            began = time.perf_counter()
            yield
            self._speed[work] = size / max(1e-6, time.perf_counter() - began)
