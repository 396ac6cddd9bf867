"""A server under the load of many connections: how fast it answers, whom it refuses, and whether it stays as it was."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results

from hypic_qualify.agreement import GAP, Difference, Pair, differing
from hypic_qualify.api import Api, documents_file
from hypic_qualify.clients import Load, one_by_one, put_under_load
from hypic_qualify.watching import HealthLog, settled_and_end, watched

if TYPE_CHECKING:
    from hypic_eval.task import Question

VERSION = 1
COLLECTION = "hypic-eval-load"
HEALTH_GOAL_MS, GROWTH_GOAL = 500.0, 5.0
TAKEN = ("200", "503")
"""What a request may come to under load: an answer, or a refusal that says when to come again."""
NOTES = [
    "Each connection asks its next question as soon as it has an answer, and after a 503 when Retry-After says. Times "
    "are of requests that were answered, without the waits after a 503. First token, client: from sending the "
    "request. Queue: until the engine takes it, finding documents included. First token, engine: from then on.",
    "Memory is the server process's resident set, from a fifth of the time to the end. Where an answer differs from "
    "the same question's alone, rounding may decide if the model's two likeliest tokens are less than "
    f"{GAP:g} nats apart at the first difference.",
]


@dataclass(frozen=True)
class Measured:
    """alone: the questions of ``load`` once more, one after the other, when it was over."""

    model: str
    load: Load
    seen: HealthLog
    alone: Load

    @property
    def differing(self) -> list[tuple[Pair, int]]:
        return differing(self.alone.answers, self.load.answers)


def measure_load(
    url: str,
    questions: "Sequence[Question]",
    n_connections: int,
    seconds: float,
    max_tokens: int,
    key: str = "",
    pid: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Ingest the questions' documents into a collection, ask about them, and remove it.

    pid: of the server's process, where it is on this machine. Raises Refused where the server does not take them.
    """
    documents = list(dict.fromkeys(document for question in questions for document in question.documents))
    asked = [question.text for question in questions] + [f"What is {title}?" for title, _ in documents if title]
    fields = {"collection": COLLECTION, "max_tokens": max_tokens}
    with Api(url, key) as api:
        model = str(api.ask("GET", "/v1/server")["model"])
        api.make(COLLECTION)
        try:
            say(f"ingesting {len(documents)} documents")
            api.send(COLLECTION, {"documents.jsonl": documents_file(documents)})
            api.wait(COLLECTION)
            say(f"{n_connections} connections for {seconds:.0f} s")
            with watched(url, pid) as seen:
                load = put_under_load(url, asked, n_connections, seconds, key, **fields)
            say("the same questions alone")
            alone = one_by_one(url, list(dict.fromkeys(one.question for one in load.answers)), key, **fields)
        finally:
            api.ask("DELETE", f"/v1/collections/{COLLECTION}")
    return Measured(model, load, seen, alone)


def summarise(measured: Measured, data: str, differences: Sequence[Difference] | None) -> Results:
    """differences: of ``measured.differing``, with their gaps; None: nobody looked."""
    load, seen = measured.load, measured.seen
    answers, rows = load.answers, []

    def add(task: str, mode: str, metric: str, arrow: str, unit: str, value: float, goal: float | None = None) -> None:
        n = len(seen.health_ms) if mode == "/health" else len(answers)
        about = (task, VERSION, data, n, mode, metric, arrow, unit, value, None, measured.model, commit())
        rows.append(ResultRow(*about, {"n_connections": load.n_connections, "seconds": load.seconds}, goal=goal))

    times = {
        "first token, client": [one.first_ms for one in answers],
        "whole answer, client": [one.whole_ms for one in answers],
        "queue": [one.told["ms"]["queue"] for one in answers],
        "first token, engine": [one.told["ms"]["ttft"] for one in answers],
        "/health": seen.health_ms,
    }
    for name, values in times.items():
        for metric, share in (("p50", 50), ("p95", 95), ("max", 100)):
            goal = HEALTH_GOAL_MS if (name, metric) == ("/health", "max") else None
            if values:
                add("load: times", name, metric, "↓", "ms", float(np.percentile(values, share)), goal)

    def count(metric: str, arrow: str, unit: str, value: float, goal: float | None = None) -> None:
        add("load", f"{load.n_connections} connections", metric, arrow, unit, value, goal)

    count("answered", "↑", "requests/s", sum(one.ended_s <= load.seconds for one in answers) / load.seconds)
    count("200", "↑", "requests", load.outcomes["200"])
    count("503", "", "requests", load.outcomes["503"])
    count("anything else", "↓", "requests", sum(n for name, n in load.outcomes.items() if name not in TAKEN), 0)
    count("/health failed", "↓", "requests", len(seen.failures), 0)
    if (memory := settled_and_end(seen.memory, load.seconds)) is not None:
        count("memory at the end", "↓", "MiB", memory[1] / 2**20)
        count("memory growth", "↓", "%", 100 * (memory[1] / memory[0] - 1), GROWTH_GOAL)
    count("differ from alone", "↓", "answers", sum(n for _, n in measured.differing))
    if differences is not None:
        beyond = sum(one.n_times for one in differences if not one.is_rounding)
        count("differ beyond rounding", "↓", "answers", beyond, 0)
    return Results("load", describe_machine(), rows, NOTES, samples=_samples(measured, differences))


def answer_rows(load: Load) -> Iterator[dict[str, Any]]:
    """Yield what is known of every answer, for a file of its own."""
    for one in load.answers:
        yield {
            "question": one.question,
            "text": one.text,
            "ended_s": round(one.ended_s, 3),
            "first_ms": round(one.first_ms, 3),
            "whole_ms": round(one.whole_ms, 3),
            **{f"server_{name}_ms": value for name, value in one.told["ms"].items()},
        }


def _samples(measured: Measured, differences: Sequence[Difference] | None) -> dict[str, Any]:
    load, seen = measured.load, measured.seen
    return {
        "outcomes": dict(load.outcomes),
        "errors": load.told,
        "alone": dict(measured.alone.outcomes),
        "health_failures": seen.failures[:20],
        "memory_s_mib": [f"{when:.0f} {nbytes / 2**20:.1f}" for when, nbytes in seen.memory[::10]],
        "differences": [asdict(one) for one in differences or ()],
    }
