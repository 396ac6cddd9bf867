"""A blocking generator, consumed from an event loop without blocking it."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


async def in_background(items: Generator[Item, None, None]) -> AsyncGenerator[Item, None]:
    """The same items, made in a thread of their own that is started at the first one.

    Closing this generator, or leaving it, closes ``items`` after the item that is being made. An exception
    that ``items`` raises comes out here.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[object] = asyncio.Queue()
    left = threading.Event()

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
