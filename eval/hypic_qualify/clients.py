"""Many requests to a server at once: connections that each ask one question after the other, or arrivals in time."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from hypic_qualify.api import chat_body

LONGEST_PAUSE = 60.0  # seconds; a longer Retry-After is not believed
ANSWER_SECONDS = 900.0


@dataclass(frozen=True)
class Answered:
    """A whole answer. ended_s: after the start of the load. first_ms, whole_ms: as the client saw it, from the request
    that was taken. told: the server's own ``hypic``. documents: (title, text)."""

    question: str
    text: str
    ended_s: float
    first_ms: float
    whole_ms: float
    told: dict[str, Any]
    documents: tuple[tuple[str, str], ...]


@dataclass
class Load:
    """outcomes: HTTP statuses, "broken connection", errors within a stream by their code. seconds: that were measured;
    what ended later counts for everything but the rate."""

    n_connections: int
    seconds: float
    answers: list[Answered] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)  # outcome -> its first error
    most_open: int = 0

    def note(self, outcome: str, error: str) -> None:
        self.outcomes[outcome] += 1
        self.told.setdefault(outcome, error)


def put_under_load(
    url: str, questions: Sequence[str], n_connections: int, seconds: float, key: str = "", **fields: Any
) -> Load:
    """Ask by many connections at once. fields: of every request, beside its question. Blocks for the seconds and
    until the last answer has come."""
    return asyncio.run(_all(url, questions, n_connections, seconds, key, fields))


def one_by_one(url: str, questions: Sequence[str], key: str = "", **fields: Any) -> Load:
    """Ask each question once, with nothing else under way."""
    return in_turn(url, [chat_body(question, stream=True, **fields) for question in questions], key)


def in_turn(url: str, bodies: Sequence[dict[str, Any]], key: str = "") -> Load:
    """Send each body, of a streamed chat, once the answer to the one before it is whole."""

    async def ask() -> Load:
        load = Load(1, 0.0)
        async with httpx.AsyncClient(base_url=url, headers=_headers(key), timeout=ANSWER_SECONDS) as http:
            for body in bodies:
                while (pause := await _ask(http, load, 0.0, body)) is not None:
                    await asyncio.sleep(pause)
        return load

    return asyncio.run(ask())


def at_times(url: str, bodies: Sequence[dict[str, Any]], times: Sequence[float], key: str = "") -> Load:
    """Send each body, of a streamed chat, at its time, whatever has become of those before it. What is refused is not
    sent again. Block until the last answer has come.

    times: seconds from the start, ascending.
    """

    async def ask() -> Load:
        load = Load(len(bodies), times[-1])
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        n_open = 0

        async def one(body: dict[str, Any], at: float) -> None:
            nonlocal n_open
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            n_open += 1
            load.most_open = max(load.most_open, n_open)
            await _ask(http, load, began, body)
            n_open -= 1

        async with httpx.AsyncClient(
            base_url=url, headers=_headers(key), limits=limits, timeout=ANSWER_SECONDS
        ) as http:
            began = time.monotonic()
            await asyncio.gather(*(one(body, at) for body, at in zip(bodies, times, strict=True)))
        return load

    return asyncio.run(ask())


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _all(
    url: str, questions: Sequence[str], n_connections: int, seconds: float, key: str, fields: dict[str, Any]
) -> Load:
    load = Load(n_connections, seconds)
    began = time.monotonic()
    limits = httpx.Limits(max_connections=n_connections, max_keepalive_connections=n_connections, keepalive_expiry=None)
    n_open = 0

    async def client(number: int) -> None:
        nonlocal n_open
        at = number  # each begins with another question
        while time.monotonic() - began < seconds:
            n_open += 1
            load.most_open = max(load.most_open, n_open)
            pause = await _ask(http, load, began, chat_body(questions[at % len(questions)], stream=True, **fields))
            n_open -= 1
            at += pause is None
            await asyncio.sleep(min(pause or 0.0, max(0.0, began + seconds - time.monotonic())))

    http = httpx.AsyncClient(base_url=url, headers=_headers(key), limits=limits, timeout=ANSWER_SECONDS)
    async with http:
        await asyncio.gather(*(client(number) for number in range(n_connections)))
    return load


async def _ask(http: httpx.AsyncClient, load: Load, began: float, body: dict[str, Any]) -> float | None:
    """Ask; return the seconds to wait before the same is asked again; None: it was answered, or never will be."""
    sent = time.monotonic()
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                load.note(str(response.status_code), text[:500])
                if response.status_code != 503:
                    return None
                return retry_after(load, response.headers.get("Retry-After"))
            answered = await _answer(response, sent, began, body["messages"][-1]["content"])
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        load.note("broken connection", repr(error))
        return 1.0
    if isinstance(answered, Answered):
        load.answers.append(answered)
        load.outcomes["200"] += 1
    else:
        load.note(f"200, then {answered.get('code')}", str(answered))
    return None


def retry_after(load: Load, value: str | None) -> float:
    """Return what a 503 asks for, in seconds; where it asks for nothing that can be done, that is noted."""
    if value is None or not value.isdecimal() or not 1 <= int(value) <= LONGEST_PAUSE:
        load.note("503 without a usable Retry-After", repr(value))
        return 1.0
    return float(value)


async def _answer(response: httpx.Response, sent: float, began: float, question: str) -> Answered | dict[str, Any]:
    """Read an answer, or the error, where the stream ends with one."""
    text, first, last = "", 0.0, {}
    documents: list[dict[str, Any]] = []  # the first event alone has their texts
    async for event in _events(response):
        if "error" in event:
            return dict(event["error"])
        part = event["choices"][0]["delta"].get("content", "")
        if part and not first:
            first = time.monotonic()
        text += part
        last = event
        documents = documents or event.get("documents", [])
    if "hypic" not in last:
        return {"code": "an end without its report", "message": str(last)[:500]}
    ended = time.monotonic()
    return Answered(
        question,
        text,
        ended - began,
        1e3 * ((first or ended) - sent),
        1e3 * (ended - sent),
        last["hypic"],
        tuple((document["title"], document["text"]) for document in documents),
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
