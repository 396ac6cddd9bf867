"""The server's log, on stderr: a line a request, and what went wrong. Nothing in it was asked, answered or uploaded.

Neither headers nor bodies nor paths are logged: of a path, its route (``/v1/collections/{name}``). An error that nobody
foresaw is told by its kind and where it was raised; what it says may quote a document.
"""

import json
import logging
import re
import sqlite3
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any

from fastapi import Depends
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hypic_apps.server.errors import ApiError, response
from hypic_rag.errors import ModelNotReady, StoreDamaged, StoreMismatch

log = logging.getLogger("hypic_apps.server")

ID_HEADER = "X-Request-Id"
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
PROBES = ("/health", "/ready", "/metrics")
POLLED = ("/v1/collections", "/v1/collections/{name}", "/v1/collections/{name}/files", "/v1/server")  # by the page
QUIET = frozenset({*PROBES, *POLLED, "/static/{name}"})  # asked every few seconds: reads are told at level debug
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_LEFT = 499  # before there was a status; nginx's number
OURS = ("hypic_apps", "hypic_rag")
# Of these the message is logged: what the machine lacks, what is wrong with a folder.
HARMLESS = (OSError, sqlite3.Error, MemoryError, RuntimeError, StoreDamaged, StoreMismatch, ModelNotReady)
_line: ContextVar[dict[str, object] | None] = ContextVar("line", default=None)

CountRequest = Callable[[str, str, int], None]


def line() -> dict[str, object]:
    """Return what will be logged of the request under way, to be added to; outside of one, a dict that nobody reads."""
    found = _line.get()
    return {} if found is None else found


def set_up(form: str, level: str) -> None:
    """Send all logging of this process to stderr, as "text" or as "json". level: of ours; of others, warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


class Logged:
    """ASGI: notes when each request arrived (``arrival``), gives it an id, which is the client's where that is sane,
    sends it back, and logs the request once it has ended. An error that nobody caught becomes a 500 that names the id.
    ``count``: told method, route and status of each."""

    def __init__(self, app: ASGIApp, count: CountRequest):
        self.app, self.count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(ID_HEADER, "")
        request_id = given if SANE_ID.fullmatch(given) else uuid.uuid4().hex
        fields: dict[str, object] = {"request_id": request_id}
        token = _line.set(fields)
        began, status, whole = time.monotonic(), 0, False
        scope.setdefault("state", {})["arrived"] = began

        async def sending(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            elif message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            pass
        except Exception as error:
            log.error("internal error", exc_info=error)
            if not status:  # else the connection closes in the middle of the answer, which tells the client
                message = f"internal error: the server's log has it under the request id {request_id}"
                await response(ApiError(500, message, "server_error"))(scope, receive, sending)
        finally:
            self._log(scope, status or CLIENT_LEFT, whole, 1e3 * (time.monotonic() - began), fields)
            _line.reset(token)

    def _log(self, scope: Scope, status: int, whole: bool, ms: float, fields: dict[str, object]) -> None:
        route, method = _route(scope), scope["method"] if scope["method"] in METHODS else "other"
        self.count(method, route, status)
        tenant = scope.get("state", {}).get("tenant")
        told: dict[str, object] = {"method": method, "route": route, "status": status, "ms": round(ms, 1)}
        if scope.get("client"):
            told["client"] = scope["client"][0]  # of a trusted proxy's header, where there is one (uvicorn's matter)
        if not whole:
            told["cut_off"] = True  # the client went away, or the answer broke off
        if tenant is not None:
            told["tenant"] = tenant.id
        is_quiet = route in QUIET and method in ("GET", "HEAD") and status < 400
        level = logging.DEBUG if is_quiet else logging.INFO
        log.log(level, "request", extra={"fields": told | {k: v for k, v in fields.items() if k != "request_id"}})


def _route(scope: Scope) -> str:
    """Return the path of a request's route, also where it was refused before it got there."""
    found = scope.get("route")
    if found is None and "app" in scope:
        matching = (route for route in _routes(scope["app"].router) if route.matches(scope)[0] != Match.NONE)
        found = next(matching, None)
    return str(getattr(found, "path", "unmatched"))


def _routes(router: Any) -> Iterator[Any]:
    for route in router.routes:
        included = getattr(route, "original_router", None)  # FastAPI's include_router
        yield from [route] if included is None else _routes(included)


async def arrival(request: Request) -> float:
    """Return when it came, of time.monotonic: a route's dependency."""
    found: float = request.state.arrived
    return found


Arrived = Annotated[float, Depends(arrival)]


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, request_id, and the fields of what is told."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info and record.exc_info[1]:
            told["error"] = safe_traceback(record.exc_info[1])
        return json.dumps(told, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """The same for people: ``TIME level message name=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_word(value)}" for name, value in _fields(record).items())
        message = record.getMessage().replace("\n", "\n  ")
        told = f"{_time(record)} {record.levelname.lower()} {message} {fields}".rstrip()
        if record.exc_info and record.exc_info[1]:
            told += "".join(f"\n  {step}" for step in safe_traceback(record.exc_info[1]))
        return told


def safe_traceback(error: BaseException) -> list[str]:
    """List the kind of an error, its message only where that cannot quote anybody, and the calls that led
    there, with those of what caused it."""
    told: list[str] = []
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        name = f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.")
        told.append(f"{name}: {one}" if isinstance(one, HARMLESS) else name)
        told += _calls(one.__traceback__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return told


def _calls(trace: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(trace)]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if "request_id" in line():
        fields["request_id"] = line()["request_id"]
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _word(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[\w./{}:-]+", text) else json.dumps(text)
