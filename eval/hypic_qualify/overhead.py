"""What a server adds to the engine's time to the first token, with one client and nothing else under way."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hypic_eval.intervals import median
from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results

from hypic_qualify.api import Refused, chat_body
from hypic_rag.errors import HypicError

if TYPE_CHECKING:
    from hypic_eval.task import Question

    from hypic_rag.engine import SegmentEngine

VERSION = 2
GOAL_MS = 5.0
N_TOKENS = 4  # an answer's: with one, its end would come in the way of its first token
N_DOCUMENTS = 2  # of each question: a short pass, so that its noise is small beside what is measured
N_WARMING = 2  # rounds that are not counted; the first of each question makes its segments
NOTES = [
    "One client over HTTP, and an engine of the same model in the client's process, asked the same in turn: answers of "
    f"{N_TOKENS} tokens over {N_DOCUMENTS} documents whose segments are in memory, timed to the first. Over HTTP from "
    "sending the texts (with Python's http.client, which adds little itself), alone from the prompt's token ids. "
    "Medians with quartiles; differences are of pairs.",
    "Beyond its own engine: the client's time less what the server tells of its engine's for the same request. Beyond "
    "an engine alone: less the time of the engine in the client's process. That is another pass, whose time on a CPU "
    "differs by far more than what a server adds; so it has no goal.",
]


class NotWarm(HypicError):
    """A segment was not where it should be timed from."""


@dataclass(frozen=True)
class Round:
    """Milliseconds to the first token. engine: as the server tells of its own. alone: in this process, in turn."""

    client: float
    engine: float
    alone: float


def measure_overhead(
    url: str,
    engine: "SegmentEngine",
    questions: "Sequence[Question]",
    n: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Round]:
    """Measure n rounds, the questions in turn. engine: of the server's model and policy. Raises Refused, NotWarm."""
    rounds: list[Round] = []
    n_untimed = N_WARMING * len(questions)
    with closing(_connected(url)) as connection:
        for i in range(n_untimed + n):
            question, is_timed = questions[i % len(questions)], i >= n_untimed
            if i % 2:
                alone = _alone(engine, question, is_timed)
                client, told = _served(connection, question, is_timed)
            else:
                client, told = _served(connection, question, is_timed)
                alone = _alone(engine, question, is_timed)
            if is_timed:
                rounds.append(Round(client, told, alone))
            on_progress(i + 1, n_untimed + n)
    return rounds


def _connected(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _served(connection: http.client.HTTPConnection, question: "Question", is_timed: bool) -> tuple[float, float]:
    """Time a request, in ms, as the client sees it, and as the server's engine tells."""
    documents = [{"title": title, "text": text} for title, text in question.documents[:N_DOCUMENTS]]
    fields = chat_body(question.text, documents=documents, max_tokens=N_TOKENS, stream=True)
    body, first, last = json.dumps(fields).encode(), 0.0, {}
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise Refused(f"{response.status}: {response.read().decode(errors='replace')[:500]}")
    while line := response.readline():
        if line.startswith(b"data: {"):
            last = json.loads(line.removeprefix(b"data: "))
            if "error" in last:
                raise Refused(last["error"]["message"])
            if last["choices"][0]["delta"].get("content") or "hypic" in last:
                first = first or time.perf_counter()
    if is_timed:
        _check_warm([document["tier"] for document in last["documents"]], last["hypic"]["resumed_tokens"])
    return 1e3 * (first - began), float(last["hypic"]["ms"]["ttft"])


def _alone(engine: "SegmentEngine", question: "Question", is_timed: bool) -> float:
    from hypic_rag.engine import Sampling

    documents = [(" ".join(title.split()), text) for title, text in question.documents[:N_DOCUMENTS]]
    prompt = engine.format.prompt(question.text, documents)  # as the server builds it
    first, began = 0.0, time.perf_counter()
    for event in engine.stream(prompt, Sampling(max_new_tokens=N_TOKENS)):
        if event.text or event.generation:
            first = first or time.perf_counter()
        if event.generation and is_timed:
            report = event.generation.report
            _check_warm([use.tier for use in report.segments], report.resumed_tokens)
    return 1e3 * (first - began)


def _check_warm(tiers: Sequence[str | None], resumed_tokens: int) -> None:
    if set(tiers) - {"host", "device"} or resumed_tokens:
        raise NotWarm(
            f"segments came from {tiers}, and {resumed_tokens} tokens from a conversation, where all should have been "
            "in memory. Give the server more of it: HYPIC_HOST_MEMORY=2GB"
        )


def summarise(model: str, data: str, rounds: Sequence[Round]) -> Results:
    def row(task: str, mode: str, metric: str, values: Sequence[float], goal: float | None = None) -> ResultRow:
        found = median(values)
        about = (task, VERSION, data, len(rounds), mode, metric, "↓", "ms", found.value, found.interval)
        return ResultRow(*about, model, commit(), {"interval": "quartiles"}, goal=goal)

    times: dict[str, list[float]] = {
        "client": [one.client for one in rounds],
        "engine in the server": [one.engine for one in rounds],
        "engine alone": [one.alone for one in rounds],
    }
    rows = [row("overhead: times", mode, "first token", values) for mode, values in times.items()]
    own, alone = [one.client - one.engine for one in rounds], [one.client - one.alone for one in rounds]
    rows.append(row("overhead", "beyond its own engine", "the server adds", own, GOAL_MS))
    rows.append(row("overhead", "beyond an engine alone", "the server adds", alone))
    samples: dict[str, Any] = {"rounds": [asdict(one) for one in rounds]}
    return Results("overhead", describe_machine(), rows, NOTES, samples=samples)
