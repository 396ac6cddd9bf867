"""Locks that neither an interrupt nor a fork can leave held."""

import os
import threading
from collections.abc import Callable
from typing import NoReturn

from hypic_rag.errors import BadInput


class UsedAfterFork(RuntimeError):
    """An object was used in another process than the one that made it."""


class StateLock:
    """Reentrant. ``what`` it guards lives in the process that made it: ``with`` refuses in a forked child, where the
    copy may be held for ever, and a copy or a pickle of it is refused too.

    ``with`` looks both methods up before it calls either. So what is Python here runs while nothing is held yet, and
    what takes the lock and lets it go is C, into which no Ctrl-C cuts: a ``def __exit__`` could be cut off before its
    first line, and the lock would stay held.
    """

    def __init__(self, what: str):
        self.what = what
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def __enter__(self) -> Callable[[], bool]:
        self._check_process()
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    @property
    def is_here(self) -> bool:
        """Whether this process made it."""
        return os.getpid() == self._pid

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def __reduce__(self) -> NoReturn:
        raise BadInput(f"{self.what} can be neither copied nor sent to another process: make another one there")

    def _check_process(self) -> None:
        if not self.is_here:
            raise UsedAfterFork(
                f"{self.what} was made in process {self._pid} and cannot be used in process {os.getpid()}, which was "
                "forked from it: a fork takes no threads along, and leaves files and locks shared. Start workers with "
                'multiprocessing.get_context("spawn") or "forkserver" and make it in them, or fork before torch has run'
            )


class FairLock(StateLock):
    """A thread that lets go and asks again at once comes after those that wait.

    ``threading.RLock`` gives no such promise: of two threads that take turns at the model, one may get every turn.
    """

    def __init__(self, what: str):
        super().__init__(what)
        self._line = threading.RLock()  # reentrant for signal handlers and finalizers, which may come while it is held

    @property
    def __enter__(self) -> Callable[[], bool]:
        self._check_process()
        if not self.is_mine:
            with self._line, self._lock:  # one at a time stands before the lock, the others behind it in their order
                pass
        return self._lock.__enter__
