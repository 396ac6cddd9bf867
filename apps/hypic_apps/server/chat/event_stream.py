"""Server-sent events, and the answers of clients that wait; whoever leaves stops the answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from hypic_apps.server.chat.rag_chat import StreamedAnswer
from hypic_apps.server.errors import ApiError, api_error
from hypic_rag.engine import Generation

SILENT_SECONDS = 10.0  # nginx ends what is silent for 60
COMMENT = b": still at work\n\n"


class ClientGone(ApiError):
    """Nobody reads it."""

    def __init__(self) -> None:
        super().__init__(499, "the client has closed the connection", code="client_closed_request")


class EventStream(StreamingResponse):
    """Each object an event, then ``[DONE]``; an error ends it with its own event. close: called in any case. headers:
    beside its own. While nothing comes, comments do, which clients pass over: a proxy would end what is silent.
    named: each event says its object's ``type``, and nothing follows the last."""

    def __init__(
        self,
        objects: AsyncIterator[dict[str, Any]],
        close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
        named: bool = False,
    ):
        own = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_events(objects, named), headers={**own, **(headers or {})}, media_type="text/event-stream")
        self._close = close
        self._n_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                silent.cancel()
            await send(message)
            self._n_sent += 1  # from when on a comment may be sent, which must not come first

        silent = asyncio.ensure_future(self._comment(send))
        try:
            await super().__call__(scope, receive, sending)
        finally:  # here, as the iterator of a client that has left already is never begun
            silent.cancel()
            self._close()

    async def _comment(self, send: Send) -> None:
        before = 0
        while True:
            await asyncio.sleep(SILENT_SECONDS)
            if 0 < self._n_sent == before:
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            before = self._n_sent


async def _events(objects: AsyncIterator[dict[str, Any]], named: bool) -> AsyncIterator[str]:
    try:
        async for one in objects:
            yield _event(one, one["type"] if named else None)
    except Exception as error:
        told = api_error(error).body()
        yield _event({"type": "error", **told} if named else told, "error" if named else None)
        return
    if not named:
        yield "data: [DONE]\n\n"


def _event(content: dict[str, Any], name: str | None = None) -> str:
    line = "" if name is None else f"event: {name}\n"
    return f"{line}data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def finished(request: Request, answer: StreamedAnswer) -> list[Generation]:
    """Return the whole answers. Raises ClientGone as soon as the client has left, and what
    ``StreamedAnswer.events`` does."""

    async def collect() -> list[Generation]:
        async for _ in answer.events():
            pass
        return answer.generations

    async def leaving() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    collecting, gone = asyncio.ensure_future(collect()), asyncio.ensure_future(leaving())
    try:
        await asyncio.wait((collecting, gone), return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            raise ClientGone()
        return collecting.result()
    finally:
        collecting.cancel()
        gone.cancel()
        answer.close()
