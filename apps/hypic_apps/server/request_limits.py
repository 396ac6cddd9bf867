"""What a request may be before a route sees it, and what every answer says to a browser."""

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hypic_apps.server.errors import ApiError, response
from hypic_rag.config import format_bytes

UPLOADS = re.compile(r"/v1/collections/[^/]+/files/?")
FILES_A_REQUEST = 10  # of the largest size; more of smaller ones
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
}


class UnderPath:
    """ASGI: what a proxy has put under ``root_path`` comes with that path before its own, or without it."""

    def __init__(self, app: ASGIApp, root_path: str):
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path, root = scope["path"], self.root_path
            if path == root or path.startswith(root + "/"):
                path = path[len(root) :] or "/"
            scope = {**scope, "path": path, "root_path": root}
        await self.app(scope, receive, send)


class OneByOne:
    """ASGI: of requests that come at the same time, each round of the event loop begins one. Two hundred would keep
    /health and the tokens of answers under way waiting for all of them; ``at_once``: paths that do not wait either."""

    def __init__(self, app: ASGIApp, at_once: Collection[str]):
        self.app, self.at_once = app, at_once
        self._turn = asyncio.Lock()  # had in the order in which it was asked for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.at_once:
            async with self._turn:
                await asyncio.sleep(0)
        await self.app(scope, receive, send)


class SecurityHeaders:
    """ASGI: answers are what they say they are, are framed by nobody, run no script of elsewhere; those of the API are
    not kept. A route that sets one of these headers itself keeps it."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, sending if scope["type"] == "http" else send)


class TooLarge(ApiError):
    def __init__(self, limit: int, setting: str):
        message = f"the request is larger than {format_bytes(limit)}, the most that this server takes ({setting})"
        super().__init__(413, message, code="request_too_large")


class BodyLimit:
    """ASGI: bodies of up to ``max_body`` bytes, those of uploads of ten files of ``max_upload``, which is each file's
    limit and the route's matter. What says that it is larger is refused unread; what proves larger, as soon as it does.
    """

    def __init__(self, app: ASGIApp, max_body: int, max_upload: int):
        self.app, self.max_body, self.max_upload = app, max_body, max_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_upload = scope["method"] == "POST" and UPLOADS.fullmatch(scope["path"]) is not None
        limit = FILES_A_REQUEST * self.max_upload if is_upload else self.max_body
        refusal = response(TooLarge(limit, "max_upload" if is_upload else "max_body"), {"Connection": "close"})
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said) > limit:
            await refusal(scope, receive, send)
            return
        n_received, started, refused = 0, False, False

        async def receiving() -> Message:
            nonlocal n_received, refused
            message = await receive()
            n_received += len(message.get("body", b""))
            if n_received > limit:
                refused = True
                raise _Stop
            return message

        async def sending(message: Message) -> None:
            nonlocal started
            if refused and not started:  # whatever the route makes of the failed read, the answer is ours
                return
            started = True
            await send(message)

        with contextlib.suppress(_Stop):
            await self.app(scope, receiving, sending)
        if refused and not started:
            await refusal(scope, receive, send)


class _Stop(Exception):
    """Ends the reading of a body that is too large."""


class SameSite:
    """ASGI: a server that asks for no key is for those who reach its machine, not for the web pages that they look at.

    A browser lets any page send to any address. Where ``asks_for_keys`` is false, what changes something must come from
    this server's own page, from ``allowed_origins``, or from no page at all; and where also ``any_host`` is false, the
    host must be an address or a bare name such as localhost: a page can point a name of its own at 127.0.0.1, and then
    is of the same origin (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, asks_for_keys: Callable[[], bool], allowed_origins: tuple[str, ...], any_host: bool
    ):
        self.app, self.asks_for_keys, self.allowed, self.any_host = app, asks_for_keys, allowed_origins, any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.asks_for_keys():
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin")
            foreign = origin is not None and origin.partition("://")[2] != host and origin not in self.allowed
            error = None
            if not self.any_host and not is_local_name(host):
                error = ApiError(
                    403,
                    "without API keys this server answers to an address or localhost only, not to a name: "
                    "make keys (hypic-rag keys add), or start it with --no-keys",
                    "permission_error",
                )
            elif scope["method"] in CHANGING and foreign and "*" not in self.allowed:
                error = ApiError(
                    403,
                    "a page of another origin may not change anything here: name it in the setting allowed_origins",
                    "permission_error",
                )
            if error is not None:
                await response(error, {"Connection": "close"})(scope, receive, send)
                return
        await self.app(scope, receive, send)


def is_local_name(host: str) -> bool:
    """Return whether a Host header cannot be a page's own: an address, a name without dots, or one under localhost."""
    name = re.sub(r":\d*$", "", host).strip("[]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(".localhost")
    return True
