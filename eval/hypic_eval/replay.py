"""A trace replayed against a server by each way to answer: times to the first token, and the highest rate held."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hypic_eval.intervals import median
from hypic_eval.machine import commit, cpu_model, describe_machine, versions
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile, row_key
from hypic_eval.task import Question
from hypic_eval.trace import Arrivals, arrival_times, pool_of, zipf_requests
from hypic_rag.errors import HypicError
from hypic_rag.prompt import DEFAULT_SYSTEM

if TYPE_CHECKING:
    from hypic_qualify.clients import Load

VERSION = 1
"""Raised whenever a change to this file or to traces alters any figure."""
WAYS = {
    "hypic": "documents are segments, cached by themselves",
    "prefix": "the system text with the first document is cached as an exact prefix, and everything else runs",
    "full": "everything runs",
}
N_ALONE = 5  # requests that are sent one by one, before any rate is tried
PERCENTILES = (50, 95, 99)
FEWEST, SHORTEST = 5, 10.0  # requests of a run, and how many times the limit it lasts: less shows nothing of a rate
ALONE = "first token, alone"

Body = dict[str, Any]


class NoAnswers(HypicError):
    """A server that does nothing else refuses, or breaks off."""


class Clients(Protocol):
    """Who sends requests. A body is that of a streamed chat."""

    def in_turn(self, bodies: Sequence[Body]) -> "Load": ...

    def at_times(self, bodies: Sequence[Body], times: Sequence[float]) -> "Load": ...


@dataclass(frozen=True)
class ReplaySettings:
    """seconds, n_most: of a run at one rate, which has as many requests as come in that time, but at most ``n_most``.

    n_documents: in the pool; k: of them a request. limit_ms: what the percentile of times to the first token has to
    keep for a rate to be held. bisections: steps between the highest rate held and the lowest not held, after doubling.
    """

    seconds: float = 60.0
    n_most: int = 200
    n_documents: int = 50
    k: int = 5
    exponent: float = 1.0
    max_tokens: int = 8
    limit_ms: float = 1000.0
    percentile: int = 95
    bisections: int = 2
    seed: int = 0

    @property
    def rates(self) -> tuple[float, float]:
        """The lowest and the highest rate, requests a second, that a run can show."""
        return FEWEST / self.seconds, self.n_most / (SHORTEST * self.limit_ms / 1e3)


def run_replay(
    clients: Clients,
    server: dict[str, Any],
    data: str,
    questions: Sequence[Question],
    ways: Sequence[str],
    arrivals: Sequence[Arrivals],
    chosen: ReplaySettings,
    rows: RowFile,
    options: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Search the highest rate that each way holds with each kind of arrivals, and tell of every run.

    server: what it says of itself (``/v1/server``). options: it was started with. rows: what they
    hold is not run again.
    Raises NoAnswers where requests that come one by one are not answered, BadInput where the pool is too small.
    """
    pool = pool_of(questions, chosen.n_documents, chosen.seed)
    asked = zipf_requests(questions, pool, chosen.n_most, chosen.k, chosen.exponent, chosen.seed)
    known = {
        "replay": VERSION,
        "server": {name: server[name] for name in ("model", "policy", "context_length", "version")},
        "options": options,
        "machine": cpu_model(),
    }
    result: list[ResultRow] = []
    for kind in arrivals:
        for way in ways:
            arm = Arm(clients, way, kind, chosen, asked, pool, rows, known, say)
            result += summarise(arm, data, server["model"], arm.search())
    return Results("replay", describe_machine(), result, notes(data, chosen, len(pool)))


@dataclass
class Arm:
    """One way to answer under one kind of arrivals."""

    clients: Clients
    way: str
    arrivals: Arrivals
    chosen: ReplaySettings
    asked: Sequence[Question]
    pool: Sequence[tuple[str, str]]
    rows: RowFile
    known: dict[str, Any]
    say: Callable[[str], None]

    @cached_property
    def bodies(self) -> list[Body]:
        return [body_of(self.way, one, self.chosen.max_tokens) for one in self.asked]

    @cached_property
    def warmed(self) -> None:
        """Ask about every document once, as ingestion would have seen it."""
        if self.way != "full":
            self.say(f"{self.way}: {len(self.pool)} documents for the first time")
            once = [body_of(self.way, Question("", "What is this?", (one,), ()), 1) for one in self.pool]
            check(self.clients.in_turn(once))

    def search(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the row of requests one by one, and those of every rate that was tried."""
        alone, tried = self.run(None), []

        def held(rate: float) -> bool:
            tried.append(self.run(rate))
            return is_held(tried[-1], self.chosen)

        if percentile(alone, self.chosen.percentile) <= self.chosen.limit_ms:
            per_second = 1e3 / float(np.mean(alone["whole_ms"]))
            search_rate(held, 2.0 ** np.floor(np.log2(per_second / 2)), *self.chosen.rates, self.chosen.bisections)
        return alone, tried

    def run(self, rate: float | None) -> dict[str, Any]:
        """Send requests at a rate, or one by one where it is None, and return the row; or take it from ``rows``."""
        chosen = self.chosen
        n = N_ALONE if rate is None else round(rate * chosen.seconds)
        bodies = self.bodies[: max(1, min(n, chosen.n_most))]
        requests = sha256(repr(bodies).encode()).hexdigest()
        place = {"mode": self.way, "arrivals": None if rate is None else self.arrivals, "rate": rate, "n": len(bodies)}
        key = row_key({**self.known, **place, "requests": requests, "seed": chosen.seed, "pool": len(self.pool)})
        if (found := self.rows.get(key)) is not None:
            return found
        self.warmed  # noqa: B018  # once
        if rate is None:
            load = self.clients.in_turn(bodies)
            check(load)
        else:
            self.say(f"{self.way}, {self.arrivals}: {len(bodies)} requests at {rate:.3g} a second")
            times = arrival_times(len(bodies), self.arrivals, chosen.seed) / rate
            load = self.clients.at_times(bodies, times.tolist())
        row = {
            **place,
            **of_load(load),
            "documents_a_request": chosen.k,
            "model": self.known["server"]["model"],
            "policy": self.known["server"]["policy"],
            "commit": commit(),
            "versions": versions(),
            "machine": self.known["machine"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.rows.append(key, row)
        return row


def body_of(way: str, asked: Question, max_tokens: int) -> Body:
    """Write the request that a way sends: the same texts, marked as documents or not."""
    fields: Body = {"max_tokens": max_tokens, "temperature": 0, "stream": True}
    if way != "prefix":
        documents = [{"title": title, "text": text} for title, text in asked.documents]
        return {"messages": [{"role": "user", "content": asked.text}], "documents": documents, "mode": way, **fields}
    texts = [f"Document: {title}\n{text}\n\n" for title, text in asked.documents]
    system, user = f"{DEFAULT_SYSTEM}\n\n{texts[0]}", f"{''.join(texts[1:])}Question: {asked.text}"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages, "mode": "hypic", **fields}


def check(load: "Load") -> None:
    """Raise NoAnswers where anything but an answer came."""
    if failed := {name: text for name, text in load.told.items() if name != "503"}:
        raise NoAnswers(f"requests that come one by one are not answered: {failed}. Look at the server's log")


def of_load(load: "Load") -> dict[str, Any]:
    """Tell of a run what is kept: times of all that were answered, and what became of the others."""
    told = [one.told for one in load.answers]
    return {
        "outcomes": dict(load.outcomes),
        "errors": load.told,
        "most_open": load.most_open,
        "ttft_ms": [round(one.first_ms, 1) for one in load.answers],
        "whole_ms": [round(one.whole_ms, 1) for one in load.answers],
        **{name: sum(one[name] for one in told) for name in ("prompt_tokens", "computed_tokens", "cached_tokens")},
    }


def percentile(row: dict[str, Any], q: int) -> float:
    """Return the time to the first token, ms, that q percent of all requests keep: one that was seen, infinity where
    that is of a request that got no answer."""
    times = [*row["ttft_ms"], *[np.inf] * (row["n"] - len(row["ttft_ms"]))]
    return float(np.percentile(times, q, method="inverted_cdf"))


def is_held(row: dict[str, Any], chosen: ReplaySettings) -> bool:
    return percentile(row, chosen.percentile) <= chosen.limit_ms


def search_rate(
    held: Callable[[float], bool], first: float, least: float, most: float, bisections: int
) -> tuple[float, float]:
    """Return the highest rate that is held (0: none), and the lowest that is not (infinity: none).

    From ``first`` on the rate is doubled while it is held, or halved while it is not, from ``least`` to ``most``; then
    steps go to the geometric mean of the two. Source: exponential and binary search.
    """
    low, high, rate = 0.0, np.inf, float(np.clip(first, least, most))
    while least <= rate <= most and (low == 0.0 or high == np.inf):
        if held(rate):
            low = rate
        else:
            high = rate
        rate = 2 * rate if high == np.inf else rate / 2
    for _ in range(bisections if low and high < np.inf else 0):
        rate = float(np.sqrt(low * high))
        low, high = (rate, high) if held(rate) else (low, rate)
    return low, high


def summarise(
    arm: Arm, data: str, model: str, measured: tuple[dict[str, Any], list[dict[str, Any]]]
) -> list[ResultRow]:
    """Make the rows of one way: the rate held, the time alone, and percentiles by rate."""
    alone, tried = measured
    rows: list[ResultRow] = []

    def add(
        of: Sequence[dict[str, Any]],
        mode: str,
        metric: str,
        arrow: str,
        unit: str,
        value: float,
        bounds: tuple[float, float] | None = None,
        **settings: Any,
    ) -> None:
        about = {"policy": of[0]["policy"], "dates": sorted(one["date"] for one in of), "machines": [of[0]["machine"]]}
        n = sum(one["n"] for one in of)
        where = ("replay", VERSION, f"{data}, {arm.arrivals} arrivals", n, mode)
        told = {**about, **asdict(arm.chosen), **settings}
        rows.append(ResultRow(*where, metric, arrow, unit, value, bounds, model, commits(list(of)), told))

    passed = [one["rate"] for one in tried if is_held(one, arm.chosen)]
    failed = [one["rate"] for one in tried if not is_held(one, arm.chosen)]
    best = max(passed, default=0.0)
    between = (best, min(rate for rate in failed if rate > best)) if failed else None
    limit = f"rate held, p{arm.chosen.percentile} within {arm.chosen.limit_ms / 1e3:g} s"
    add([alone, *tried], arm.way, limit, "↑", "requests/s", best, between, interval="held, and not held")
    time = median(alone["ttft_ms"])
    add([alone], arm.way, ALONE, "↓", "ms", time.value, time.interval, interval="quartiles")
    for one in sorted(tried, key=lambda row: float(row["rate"])):
        mode, sweep = f"{arm.way}, rate {one['rate']:.3g}", {"axis": "rate", "x": one["rate"], "mode": arm.way}
        for q in PERCENTILES:
            if np.isfinite(value := percentile(one, q)):  # else it is a refusal's
                add([one], mode, f"first token, p{q}", "↓", "ms", value, sweep=sweep)
        add([one], mode, "refused or broken", "↓", "requests", one["n"] - len(one["ttft_ms"]), sweep=sweep)
        share = 100 * one["cached_tokens"] / max(1, one["prompt_tokens"])
        add([one], mode, "prompt tokens from the cache", "↑", "%", share, sweep=sweep)
    return rows


def notes(data: str, chosen: ReplaySettings, n_documents: int) -> list[str]:
    return [
        f"{data}: each request has {chosen.k} of {n_documents} documents, drawn by Zipf with exponent "
        f"{chosen.exponent:g}, and an answer of at most {chosen.max_tokens} tokens. Every document had been asked "
        "about once before. Arrivals do not wait for answers; a run is of as many requests as come in "
        f"{chosen.seconds:g} s, at most {chosen.n_most}. Bursty: gaps three times as spread as Poisson's.",
        f"A rate is held where {chosen.percentile}% of its requests have their first token within "
        f"{chosen.limit_ms / 1e3:g} s of arrival, as the client sees it; a refusal counts as one that has not. Beside "
        "it in brackets: the same, and the lowest rate that was not held. Runs of fewer than "
        f"{FEWEST} requests, or shorter than {SHORTEST:g} times that, show nothing of a rate, so that "
        f"{chosen.rates[0]:.3g} to {chosen.rates[1]:.3g} requests a second were looked at. Of fewer than 100 requests "
        "p99 is the slowest.",
        "; ".join(f"{way}: {what}" for way, what in WAYS.items()) + ".",
    ]
