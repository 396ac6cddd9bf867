"""A child that is forked while another thread is at work."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


def status_of_fork(held: AbstractContextManager[object], work: Callable[[], int]) -> int:
    """Fork while another thread holds ``held``; return what ``work`` did in the child: 255 where it raised, and minus
    a signal's number where it took more than 20 s."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with held:
            is_held.set()
            is_over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(10)
    child = os.fork()
    if not child:
        status = 255
        try:
            signal.alarm(20)
            status = work()
        finally:
            os._exit(status)
    is_over.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
