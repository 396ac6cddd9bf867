"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hypic_rag.errors import BadInput, ContextTooLong, HypicError, NoRoom

log = logging.getLogger("hypic_apps.server")


class ApiError(Exception):
    """An answer of this status. kind: OpenAI's error type. retry_after: seconds, for 503 and 429."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, object]:
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {name: value and _in_utf8(value) for name, value in told.items()}}


def _in_utf8(text: str) -> str:
    """Write half a character (JSON can hold one) as its escape: an answer cannot hold it."""
    return text.encode("utf-8", "backslashreplace").decode()


class ErrorBody(BaseModel):
    """An error. code: a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorBody


RESPONSES: dict[int | str, dict[str, object]] = {
    "default": {"model": ErrorAnswer, "description": "What was wrong. With 503 Retry-After says when to come again."}
}
"""For the schema: of every route."""


class Busy(ApiError):
    """The queue is full."""

    def __init__(self, retry_after: int):
        message = f"the server has as many requests as it can hold: try again in {retry_after} s"
        super().__init__(503, message, "server_error", "overloaded", retry_after=retry_after)


class ShuttingDown(ApiError):
    def __init__(self) -> None:
        super().__init__(503, "the server is shutting down: try again in a while", "server_error", "shutting_down",
                         retry_after=10)  # fmt: skip


class TooSlow(ApiError):
    """A request reached its time limit."""

    def __init__(self) -> None:
        super().__init__(504, "the request reached the server's time limit: ask for fewer tokens, or later",
                         "server_error", "timeout")  # fmt: skip


def api_error(error: Exception) -> ApiError:
    """Turn any error into what a client is told of it; of one that is the server's own, nothing but that."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextTooLong):
        return ApiError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, BadInput):
        return ApiError(400, str(error))
    if isinstance(error, NoRoom):
        return ApiError(507, str(error), "server_error", "insufficient_storage")
    log.error("internal error", exc_info=error)
    if isinstance(error, HypicError):
        return ApiError(500, str(error), "server_error")
    return ApiError(500, "internal error: the server's log has it under this request's id", "server_error")


def response(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Make an answer of the error, with these headers beside its own."""
    own = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse(error.body(), error.status, {**own, **(headers or {})})


def install(app: FastAPI) -> None:
    """Let every error of a route come out in this form."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return response(api_error(error))

    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "json_invalid":
            return response(ApiError(400, f"the body is not JSON: {first['ctx']['error']}, at character {place}"))
        if not place and not request.headers.get("content-type", "").startswith("application/json"):
            return response(ApiError(400, "the body is not taken for JSON: send Content-Type: application/json"))
        return response(ApiError(400, f"{place or 'the request'}: {text}", param=place or None))

    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        return response(ApiError(error.status_code, str(error.detail)), error.headers)

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(HypicError, known)
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, of_http)  # type: ignore[arg-type]
