"""An interrupt at any line of a request: every other request is right or has failed, and the engine goes on."""

import random
import sys
import threading
from collections.abc import Callable

import pytest
import tiny
from interrupts import Interrupter

from hypic_rag import Sampling, SegmentEngine
from hypic_rag.errors import PassInterrupted
from hypic_rag.prompt import Prompt

FILES = (
    *("/locks.py", "engine/engine.py", "/scheduler.py", "backends/base.py", "backends/torch.py", "/session_cache.py"),
    *("/request.py", "engine/state.py", "/sampler.py", "/detokenizer.py"),
    *(
        "/assemble.py",
        "/segment_manager.py",
        "engine/prefill.py",
        "cache/cache.py",
        "tiers/host.py",
        "tiers/eviction.py",
    ),
    "<string>",  # what dataclasses generate: keys are compared and hashed there
)
ERRORS = (KeyboardInterrupt, SystemExit, MemoryError)
N_NEW = 4


def prompt(*documents: int, question: int) -> Prompt:
    return Prompt.build(tiny.ids(10, 9), [tiny.ids(20 + i, i) for i in documents], tiny.ids(9, question))


OURS, OTHERS, RAW = prompt(1, 2, question=50), prompt(2, 3, question=51), prompt(4, question=52)


class Bench:
    """An engine with an answer of every prompt that was given by itself."""

    def __init__(self) -> None:
        self.engine = tiny.engine("qwen3_5_text")
        self.right = {p: self.engine.generate(p, Sampling(N_NEW)).token_ids for p in (OURS, OTHERS, RAW)}

    def interrupted(self, error: type[BaseException], n: int, ask: Callable[[SegmentEngine], object]) -> Interrupter:
        """While another's stream and a queued request are under way."""
        engine = self.engine
        engine.forget()
        for p in (OTHERS, RAW):
            engine.prefill(p.documents)
        raw = engine.add_request(RAW, Sampling(N_NEW))
        others = engine.stream(OTHERS, Sampling(N_NEW))
        next(others)
        interrupter = Interrupter(error, FILES, n)
        try:
            with interrupter.inside():
                ask(engine)
        except error:
            assert interrupter.where
        where = f"{error.__name__} at {interrupter.where}"
        failures = (PassInterrupted, MemoryError)
        try:
            generation = [event.generation for event in others][-1]
            assert generation is not None and generation.token_ids == self.right[OTHERS], where
        except failures:
            assert interrupter.where
        told = 0
        while engine.has_work:
            try:
                for output in engine.step():
                    if output.request_id == raw and output.generation:
                        told += 1
                        assert output.generation.token_ids == self.right[RAW], where
            except failures:
                told += 1
        self.check(where)
        return interrupter

    def check(self, where: str) -> None:
        """As new: nothing under way, the lock free, answers right, resumed ones too."""
        engine, got = self.engine, []
        assert not engine._scheduler._requests, where

        def ask() -> None:
            for _ in range(2):  # the second from the held end of the first
                got.append(engine.generate(OURS, Sampling(N_NEW)).token_ids)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(20)
        assert got == [self.right[OURS]] * 2 and not engine._scheduler._unfinished, where


def answer(engine: SegmentEngine) -> None:
    engine.generate(OURS, Sampling(N_NEW))


def leave(engine: SegmentEngine) -> None:
    stream = engine.stream(OURS, Sampling(N_NEW))
    next(stream)
    stream.close()


def score(engine: SegmentEngine) -> None:
    engine.score(OURS, (5, 6))


def prefill(engine: SegmentEngine) -> None:
    engine.prefill(OURS.documents)


def forget(engine: SegmentEngine) -> None:
    engine.generate(RAW, Sampling(1))
    engine.forget()


ASKED = {"answer": answer, "leave": leave, "score": score, "prefill": prefill, "forget": forget}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("name", ASKED)
def test_an_interrupt_at_any_line_spoils_nobody(bench: Bench, name: str) -> None:
    """A few of the lines here, drawn anew from a fixed seed; all of them, with every error: see every_line."""
    draw = random.Random(name)
    n_lines = every_line(bench, name, (KeyboardInterrupt,), lambda n: False)
    for _ in range(8):
        assert bench.interrupted(draw.choice(ERRORS), draw.randrange(n_lines), ASKED[name]).where


def every_line(bench: Bench, name: str, errors: tuple[type[BaseException], ...], wanted: Callable[[int], bool]) -> int:
    """Interrupt at each line whose number is ``wanted``; how many there are."""
    n_lines = sys.maxsize - bench.interrupted(KeyboardInterrupt, sys.maxsize, ASKED[name]).left
    for n in filter(wanted, range(n_lines)):
        for error in errors:
            bench.interrupted(error, n, ASKED[name])
    return n_lines
