"""The threads in which prompts are made: few, since each that computes in Python keeps the event loop waiting."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

THREADS = 4
Made = TypeVar("Made")


class PreparationPool:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "prepare")

    async def run(self, make: Callable[[], Made], drop: Callable[[Made], None]) -> Made:
        """Return or raise what ``make`` does; where it is cancelled before a thread is free, it is not begun, and where
        that is too late ``drop`` gets what was made."""
        context = contextvars.copy_context()  # the log's lines are of this request
        made = self._threads.submit(context.run, make)
        try:
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            made.add_done_callback(lambda done: _drop_made(done, drop))
            raise

    def close(self) -> None:
        """Close, without waiting for what has begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _drop_made(done: Future[Made], drop: Callable[[Made], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        drop(done.result())
