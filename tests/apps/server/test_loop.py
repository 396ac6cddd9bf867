"""The engine's thread: who is next, who is refused, and what is told when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypic_apps.server.chat.engine_loop import EngineLoop, EngineStopped, Stream
from hypic_apps.server.errors import Busy, ShuttingDown, TooSlow

from hypic_rag import SegmentEngine
from hypic_rag.engine import Policy, Sampling
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import Prompt


def with_loop(
    engine: SegmentEngine, use: Callable[[EngineLoop], Awaitable[None]], max_running: int = 1, max_waiting: int = 8
) -> None:
    """``use`` starts the loop, or does not."""

    async def main() -> None:
        loop = EngineLoop(engine, max_running, max_waiting)
        try:
            await use(loop)
        finally:
            await asyncio.to_thread(loop.close, 5)
        assert not engine.has_work

    asyncio.run(main())


def ask(loop: EngineLoop, n_tokens: int = 3, seconds: float = 30, owner: str = "", n_prompt: int = 5) -> Stream:
    prompt = Prompt.build((), (), range(100, 100 + n_prompt))
    return loop.stream(prompt, Sampling(n_tokens), Policy(), "", seconds, owner)


async def text_of(stream: Stream) -> str:
    return "".join([event.text async for event in stream])


def test_answers_are_the_engines(tiny_engine: SegmentEngine) -> None:
    alone = tiny_engine.generate(Prompt.build((), (), range(100, 105)), Sampling(12))

    async def use(loop: EngineLoop) -> None:
        loop.start()
        assert await asyncio.gather(*(text_of(ask(loop, 12)) for _ in range(5))) == [alone.text] * 5

    with_loop(tiny_engine, use, max_running=3)


def test_one_who_asks_much_does_not_keep_others_waiting(tiny_engine: SegmentEngine) -> None:
    order = []

    async def follow(owner: str, stream: Stream) -> None:
        await text_of(stream)
        order.append(owner)

    async def use(loop: EngineLoop) -> None:
        streams = [(owner, ask(loop, owner=owner)) for owner in ("a", "a", "a", "b")]
        loop.start()
        await asyncio.gather(*(follow(*one) for one in streams))

    with_loop(tiny_engine, use, max_running=2)
    assert order.index("b") < 2


def test_more_than_it_holds_is_refused_with_a_time_to_come_back(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        streams = [ask(loop) for _ in range(3)]
        with pytest.raises(Busy) as refused:
            ask(loop)
        assert refused.value.retry_after and refused.value.retry_after >= 1
        streams.pop().close()  # who leaves makes room at once
        streams.append(ask(loop))
        loop.start()
        await asyncio.gather(*map(text_of, streams))

    with_loop(tiny_engine, use, max_running=1, max_waiting=2)


def test_who_would_be_refused_is_so_before_a_prompt_is_made(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        with loop.place(""), loop.place(""):
            with pytest.raises(Busy), loop.place(""):
                pass
            streams = [ask(loop) for _ in range(2)]  # those for whom the places were kept
        with pytest.raises(Busy), loop.place(""):
            pass
        streams.pop().close()
        with loop.place(""):
            pass
        loop.start()
        await asyncio.gather(*map(text_of, streams))

    with_loop(tiny_engine, use, max_running=1, max_waiting=1)


@pytest.mark.parametrize("started", [True, False], ids=["running", "waiting"])
def test_a_request_past_its_time_is_ended(tiny_engine: SegmentEngine, started: bool) -> None:
    async def use(loop: EngineLoop) -> None:
        if started:
            loop.start()
        with pytest.raises(TooSlow):
            await text_of(ask(loop, 100_000, seconds=0.3))
        assert not loop.n_waiting
        for _ in range(100):
            if not loop.n_running and not tiny_engine.has_work:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it is still running")

    with_loop(tiny_engine, use)


def test_a_task_that_is_cancelled_stops_its_request(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        loop.start()

        async def follow() -> None:
            with ask(loop, 100_000) as stream:
                await text_of(stream)

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.2)
        assert tiny_engine.has_work
        task.cancel()
        await asyncio.sleep(0.3)
        assert not tiny_engine.has_work

    with_loop(tiny_engine, use)


def test_closing_lets_what_was_taken_finish(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        loop.start()
        streams = [ask(loop, 40) for _ in range(3)]  # one runs, two wait
        closing = asyncio.create_task(asyncio.to_thread(loop.close, 20))
        await asyncio.sleep(0.05)
        with pytest.raises(ShuttingDown):
            ask(loop)
        assert all(await asyncio.gather(*map(text_of, streams)))
        await closing
        assert not loop.is_alive

    with_loop(tiny_engine, use)


def test_what_is_not_done_within_the_grace_is_told_so(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        loop.start()
        streams = [ask(loop, 100_000) for _ in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(loop.close, 0.2)
        ends = await asyncio.gather(*map(text_of, streams), return_exceptions=True)
        assert [type(end) for end in ends] == [ShuttingDown] * 3

    with_loop(tiny_engine, use)


def test_a_loop_that_never_started_tells_who_waits(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        stream = ask(loop)
        await asyncio.to_thread(loop.close, 0.1)
        with pytest.raises(ShuttingDown):
            await text_of(stream)

    with_loop(tiny_engine, use)


@pytest.mark.parametrize("error, told", [(ZeroDivisionError, ZeroDivisionError), (SystemExit, RuntimeError)])
def test_a_failed_step_is_told_and_the_next_request_runs(
    tiny_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], told: type[Exception]
) -> None:
    def broken_run(*_: object) -> None:
        raise error

    async def use(loop: EngineLoop) -> None:
        loop.start()
        with monkeypatch.context() as broken:
            broken.setattr(tiny_engine.backend, "run", broken_run)
            for _ in range(3):
                with pytest.raises(told):
                    await text_of(ask(loop))
        assert not loop.is_alive
        assert await text_of(ask(loop))
        assert loop.is_alive

    with_loop(tiny_engine, use)


def test_a_thread_that_dies_leaves_nobody_waiting(tiny_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(loop: EngineLoop) -> None:
        monkeypatch.setattr(loop, "_admit", failing)
        streams = [ask(loop) for _ in range(2)]
        loop.start()
        ends = await asyncio.gather(*map(text_of, streams), return_exceptions=True)
        assert [type(end) for end in ends] == [EngineStopped] * 2
        with pytest.raises(EngineStopped):
            ask(loop)
        assert not loop.is_alive

    with_loop(tiny_engine, use)


def test_what_the_engine_refuses_is_told_and_others_go_on(tiny_engine: SegmentEngine) -> None:
    async def use(loop: EngineLoop) -> None:
        loop.start()
        ends = await asyncio.gather(
            text_of(ask(loop, 30)), text_of(ask(loop, n_prompt=9000)), text_of(ask(loop, 30)), return_exceptions=True
        )
        assert isinstance(ends[1], ContextTooLong)
        assert ends[0] == ends[2] and ends[0]

    with_loop(tiny_engine, use)


def failing(*_: Any) -> None:
    raise ZeroDivisionError
