"""FairLock: reentrant, in order, and nobody is passed over."""

import threading
import time
from itertools import pairwise

from hypic_rag.fair_lock import FairLock


def test_it_is_had_in_the_order_in_which_it_was_asked_for() -> None:
    lock, order = FairLock(), []

    def ask(name: int) -> None:
        with lock, lock:
            order.append(name)

    with lock:
        threads = []
        for name in range(5):
            threads.append(threading.Thread(target=ask, args=(name,)))
            threads[-1].start()
            while len(lock._waiting) <= name:
                time.sleep(0.001)
        with lock:  # reentered while others wait
            assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_thread_that_asks_again_at_once_comes_after_those_that_wait() -> None:
    lock, ended, turns = FairLock(), threading.Event(), []

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
    lock, inside, most = FairLock(), [], [0]

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
    assert most == [1] and lock._owner is None and not lock._waiting
