"""A lock that is had in the order in which it was asked for."""

import threading
from collections import deque


class FairLock:
    """Reentrant. A thread that lets go and asks again at once comes after those that wait.

    ``threading.RLock`` gives no such promise: of two threads that take turns at the model, one may get every turn.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # of the fields below; never held for long
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> "FairLock":
        me = threading.get_ident()
        turn = threading.Lock()
        with self._guard:
            if self._owner in (None, me):  # None: then nobody waits either
                self._owner = me
                self._depth += 1
                return self
            turn.acquire()
            self._waiting.append((me, turn))
        try:
            turn.acquire()  # until whoever holds the lock hands it over
        except BaseException:  # Ctrl-C while waiting
            self._give_up(me, turn)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._depth -= 1
            if not self._depth:
                self._hand_over()

    def _hand_over(self) -> None:
        self._owner = None
        if self._waiting:
            self._owner, turn = self._waiting.popleft()
            self._depth = 1
            turn.release()

    def _give_up(self, me: int, turn: threading.Lock) -> None:
        with self._guard:
            if (me, turn) in self._waiting:
                self._waiting.remove((me, turn))
            else:  # it was ours already
                self._depth = 0
                self._hand_over()
