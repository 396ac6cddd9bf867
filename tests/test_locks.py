"""Locks: reentrant, nearly in order, nobody is passed over, and never left held by an interrupt or a fork."""

import copy
import pickle
import signal
import threading
import time
from contextlib import suppress
from itertools import count, pairwise

import pytest
from forks import status_of_fork
from interrupts import Interrupter

from hypic_rag.errors import BadInput
from hypic_rag.locks import FairLock, StateLock, UsedAfterFork


def is_free(lock: StateLock) -> bool:
    """Whether another thread gets it."""
    got = threading.Event()

    def ask() -> None:
        with lock:
            got.set()

    threading.Thread(target=ask, daemon=True).start()
    return got.wait(5)


def test_it_is_had_in_the_order_in_which_it_was_asked_for() -> None:
    lock, order = FairLock("it"), []

    def ask(name: int) -> None:
        with lock, lock:
            order.append(name)
            time.sleep(0.005)

    with lock:
        threads = []
        for name in range(5):
            threads.append(threading.Thread(target=ask, args=(name,)))
            threads[-1].start()
            time.sleep(0.02)
        with lock:  # reentered while others wait
            assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_thread_that_asks_again_at_once_comes_after_those_that_wait() -> None:
    lock, ended, turns = FairLock("it"), threading.Event(), []

    def greedy() -> None:
        while not ended.is_set():
            with lock:
                turns.append("greedy")
                time.sleep(0.005)

    thread = threading.Thread(target=greedy)
    thread.start()
    for _ in range(10):
        with lock:
            turns.append("other")
    ended.set()
    thread.join()
    others = [i for i, who in enumerate(turns) if who == "other"]
    assert max(b - a for a, b in pairwise(others)) <= 2, turns


def test_no_two_have_it_at_once() -> None:
    lock, inside, most = FairLock("it"), [], [0]

    def work() -> None:
        for _ in range(200):
            with lock:
                inside.append(1)
                most[0] = max(most[0], len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and is_free(lock)


def test_a_signal_handler_may_take_it_whatever_it_interrupts() -> None:
    lock, taken = FairLock("it"), []

    def handler(*_: object) -> None:
        with lock:
            taken.append(1)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        while len(taken) < 100:
            with lock:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert is_free(lock)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_at_any_line_leaves_it_free(error: type[BaseException]) -> None:
    for n in count():
        lock, interrupter = FairLock("it"), Interrupter(error, ["/locks.py"], n)
        with suppress(error), interrupter.inside(), lock, lock:
            pass
        assert is_free(lock), interrupter.where
        if not interrupter.where:
            break
    assert n > 5  # lines of it


def test_interrupts_at_any_instant_leave_it_free() -> None:
    lock, ended, n_caught = FairLock("it"), threading.Event(), 0

    def other() -> None:
        while not ended.is_set():
            with lock:
                time.sleep(0.0001)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=other)
    thread.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + i * 3e-6)
                while True:
                    with lock, lock:
                        pass
            except KeyboardInterrupt:
                n_caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ended.set()
    thread.join(5)
    assert n_caught == 200 and not thread.is_alive() and is_free(lock)


def test_in_a_forked_child_it_refuses_at_once() -> None:
    lock = FairLock("this thing")

    def work() -> int:
        try:
            with lock:
                return 1
        except UsedAfterFork as error:
            return 0 if "this thing" in str(error) and "spawn" in str(error) else 2

    assert status_of_fork(lock, work) == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied(copied: object) -> None:
    with pytest.raises(BadInput, match="this thing can be neither copied nor sent to another process"):
        copied(StateLock("this thing"))  # type: ignore[operator]
