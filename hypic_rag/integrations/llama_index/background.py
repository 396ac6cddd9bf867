"""Blocking work, waited for in an event loop without blocking it, in threads that a cancelled wait gives back."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


async def result_of(work: Callable[[threading.Event], Item]) -> Item:
    """Run ``work`` in a thread of its own; return or raise what it does.

    Where the wait is cancelled, the event is set that ``work`` is given, and nobody waits for it: it should end soon.
    """
    stop = threading.Event()

    def once() -> Generator[Item, None, None]:
        yield work(stop)

    async with contextlib.aclosing(in_background(once(), stop)) as results:
        return await anext(results)


async def in_background(
    items: Generator[Item, None, None], stop: threading.Event | None = None
) -> AsyncGenerator[Item, None]:
    """Yield the same items, made in a thread of their own that is started at the first one.

    Closing this generator, or leaving it, sets ``stop``, which may cut short the item that is being made, and closes
    ``items`` after it. An exception that ``items`` raises comes out here.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[object] = asyncio.Queue()
    left = stop or threading.Event()

    def deliver(item: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def make() -> None:
        try:
            with contextlib.closing(items):
                for item in items:
                    if left.is_set():
                        return
                    deliver(item)
                    if left.is_set():
                        return
        except BaseException as error:
            deliver(_Raised(error))
        finally:
            deliver(_END)

    threading.Thread(target=contextvars.copy_context().run, args=(make,), name="hypic-stream", daemon=True).start()
    try:
        while (item := await queue.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        left.set()


class _Raised:
    def __init__(self, error: BaseException):
        self.error = error
