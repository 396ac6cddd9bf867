"""JSON bodies: small ones are read at once, large ones in a thread, so that others are answered meanwhile."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from hypic_apps.server.app_state import service
from hypic_apps.server.auth.tenants import tenant

AT_ONCE = 64 * 1024  # bytes; about a millisecond
_one_at_a_time = threading.Lock()

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """A route whose body is JSON."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handler


class AnswerRoute(JsonRoute):
    """The route of a request to the engine: refused before its body is read where it
    would find no place in the queue."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            (await service(request)).loop.check_room((await tenant(request)).namespace())
            return await handle(request)

        return handler


class _Request(Request):
    async def json(self) -> Any:
        content = await self.body()
        if len(content) <= AT_ONCE:
            return json.loads(content)
        return await asyncio.to_thread(_loads, content)


def _loads(content: bytes) -> Any:
    """Parse JSON, one body at a time: ``json.loads`` keeps the interpreter to itself until it ends. Of a million lists,
    most of that time would go to the search for garbage among them."""
    with _one_at_a_time:
        gc.disable()
        try:
            return json.loads(content)
        finally:
            gc.enable()
