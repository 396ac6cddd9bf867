"""Replayed traces: arrivals and draws as they should be, the search for a rate, and real requests to a tiny server."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypic_eval.commands.replay import HttpClients
from hypic_eval.plots import plots_of
from hypic_eval.replay import Body, NoAnswers, ReplaySettings, body_of, percentile, run_replay, search_rate
from hypic_eval.report import write_report
from hypic_eval.results import ResultRow
from hypic_eval.rows import RowFile
from hypic_eval.task import Question, read_questions
from hypic_eval.trace import Arrivals, arrival_times, zipf_draws
from hypic_qualify.clients import Answered, Load, at_times

from hypic_rag.errors import BadInput

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "apps"), str(TESTS / "apps" / "server")]  # collecting, tiny_server


@pytest.mark.parametrize("arrivals, spread", [("poisson", 1.0), ("bursty", 3.0)])
def test_arrivals_have_their_rate_and_their_spread(arrivals: Arrivals, spread: float) -> None:
    times = arrival_times(20_001, arrivals, seed=3)
    gaps = np.diff(times)
    assert (times[0], times[-1]) == (0.0, pytest.approx(20_000)) and (gaps >= 0).all()
    assert gaps.std() / gaps.mean() == pytest.approx(spread, rel=0.05)
    assert np.array_equal(times, arrival_times(20_001, arrivals, seed=3))
    assert list(arrival_times(1, arrivals, seed=3)) == [0.0]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_draws_are_by_zipf_and_differ_within_a_request(exponent: float) -> None:
    n, n_items = 40_000, 20
    first = Counter(zipf_draws(n, n_items, 3, exponent, seed=1)[:, 0].tolist())
    weights = np.arange(1, n_items + 1) ** -exponent
    for item, share in enumerate(weights / weights.sum()):
        assert first[item] / n == pytest.approx(share, abs=4 * np.sqrt(share / n))
    assert all(len(set(row)) == 3 for row in zipf_draws(500, n_items, 3, exponent, seed=2).tolist())
    # A longer trace begins as a shorter one does: a run that was measured counts again.
    assert np.array_equal(zipf_draws(9, n_items, 3, exponent, 5)[:4], zipf_draws(4, n_items, 3, exponent, 5))


def test_more_documents_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(BadInput, match="5 different documents a request cannot be drawn from 4"):
        zipf_draws(1, 4, 5, 1.0, 0)


SEARCHES = {  # holds up to, first, bisections; held, not held, tried; rates go from 2 ** -10 to 2 ** 12
    "doubled, then bisected": (3.0, 1.0, 1, (2 * 2**0.5, 4.0), 4),
    "halved": (0.3, 1.0, 0, (0.25, 0.5), 3),
    "all": (1e9, 1024.0, 3, (4096.0, np.inf), 3),
    "none": (0.0, 2.0**-9, 3, (0.0, 2.0**-10), 2),
}


@pytest.mark.parametrize("most, first, bisections, found, n_tried", SEARCHES.values(), ids=SEARCHES)
def test_the_rate_is_searched(
    most: float, first: float, bisections: int, found: tuple[float, float], n_tried: int
) -> None:
    tried: list[float] = []

    def held(rate: float) -> bool:
        tried.append(rate)
        return rate <= most

    assert search_rate(held, first, 2.0**-10, 2.0**12, bisections) == pytest.approx(found)
    assert len(tried) == len(set(tried)) == n_tried


def test_what_is_not_answered_counts_as_never() -> None:
    row = {"ttft_ms": [float(i) for i in range(1, 19)], "n": 20}
    assert [percentile(row, q) for q in (50, 90, 95, 99)] == [10.0, 18.0, np.inf, np.inf]
    assert percentile({"ttft_ms": [5.0, 7.0], "n": 2}, 95) == 7.0  # one that was seen


def test_every_way_sends_the_same_texts() -> None:
    asked = Question("1", "Who?", (("A", "Alpha."), ("B", "Beta.")), ())
    texts = {way: body_of(way, asked, 4) for way in ("hypic", "prefix", "full")}
    assert [texts[way]["mode"] for way in texts] == ["hypic", "hypic", "full"]
    assert texts["hypic"]["documents"] == texts["full"]["documents"] == [
        {"title": "A", "text": "Alpha."}, {"title": "B", "text": "Beta."},
    ]  # fmt: skip
    system, user = (message["content"] for message in texts["prefix"]["messages"])
    assert "Alpha." in system and "Beta." not in system
    assert user == "Document: B\nBeta.\n\nQuestion: Who?"


class QueueOfOne:
    """A server that takes one request at a time, each so many ms by its way; times are counted, not waited for."""

    def __init__(self, ms: dict[str, float]):
        self.ms, self.n_runs = ms, 0

    def in_turn(self, bodies: Sequence[Body]) -> Load:
        return self.at_times(bodies, [1e6 * i for i in range(len(bodies))])

    def at_times(self, bodies: Sequence[Body], times: Sequence[float]) -> Load:
        self.n_runs += 1
        load, free = Load(len(bodies), times[-1]), 0.0
        for body, at in zip(bodies, times, strict=True):
            free = max(free, at) + self.ms["prefix" if "documents" not in body else body["mode"]] / 1e3
            told = {"prompt_tokens": 10, "computed_tokens": 5, "cached_tokens": 5}
            load.answers.append(Answered("", "", free, 1e3 * (free - at), 1e3 * (free - at), told, ()))
            load.outcomes["200"] += 1
        return load


SERVER: dict[str, Any] = {"model": "m", "policy": {"mode": "hypic"}, "context_length": 9, "version": "1", "tiers": {}}
SETTINGS = ReplaySettings(seconds=2000.0, n_most=4000, n_documents=8, k=2, bisections=3)


def found(rows: Sequence[ResultRow], mode: str, metric: str) -> ResultRow:
    [row] = [row for row in rows if row.mode == mode and row.metric.startswith(metric)]
    return row


def test_the_faster_way_holds_more_and_nothing_is_run_twice(few: Path, tmp_path: Path) -> None:
    _, questions = read_questions(few)
    clients, file = QueueOfOne({"hypic": 50, "prefix": 400, "full": 1500}), RowFile(tmp_path / "rows.jsonl")
    about = (SERVER, "few", questions, ["hypic", "prefix", "full"], ["poisson", "bursty"], SETTINGS)
    results = run_replay(clients, *about, file)  # type: ignore[arg-type]
    rows = [row for row in results.rows if row.data == "few, poisson arrivals"]
    hypic, prefix, full = (found(rows, way, "rate held") for way in ("hypic", "prefix", "full"))
    # An M/D/1 queue of 50 ms keeps p95 within 1 s up to a load of about 0.92, or 18.4 requests a second.
    assert 14 < hypic.value < 20 and hypic.interval is not None and hypic.interval[0] == hypic.value
    assert 1.05 < hypic.interval[1] / hypic.interval[0] < 1.1  # three bisections of a factor of 2
    assert 0.5 < prefix.value < 2.0
    assert (full.value, full.interval) == (0.0, None)  # not even alone
    assert found(rows, "full", "first token, alone").value == 1500
    bursty = [row for row in results.rows if row.data == "few, bursty arrivals"]
    assert found(bursty, "hypic", "rate held").value < hypic.value
    n_runs = clients.n_runs
    assert run_replay(clients, *about, RowFile(tmp_path / "rows.jsonl")).rows == results.rows  # type: ignore[arg-type]
    assert clients.n_runs == n_runs

    results.save(tmp_path / "replay.json")
    page = write_report([tmp_path / "replay.json"], tmp_path / "page").read_text("utf-8")
    assert {plot.name for plot in plots_of(rows)} == {f"few-poisson-arrivals-{name}" for name in ("held", "rate")}
    assert page.count("<figure") == 4 and "rate held, p95 within 1 s" in page


def test_a_server_is_asked(few: Path, tmp_path: Path) -> None:
    from collecting import make_service
    from tiny_server import running

    service = make_service(tmp_path / "server")
    _, questions = read_questions(few)
    chosen = ReplaySettings(seconds=2.0, n_most=80, n_documents=6, k=2, max_tokens=2, bisections=0, limit_ms=2_000)
    assert chosen.rates == (2.5, 4.0)  # 80 requests in 20 s at the most
    with running(service) as server:
        told = {"model": "tiny", "policy": {}, "context_length": 1, "version": "1"}
        ways = ["hypic", "prefix", "full"]
        file = RowFile(None)
        clients = HttpClients(server.url, "")
        results = run_replay(clients, told, "few", questions, ways, ["poisson"], chosen, file)
        broken = HttpClients(f"{server.url}/nowhere", "")
        refused = at_times(server.url, [{"messages": []}], [0.0])
        with pytest.raises(NoAnswers, match=r"404|405"):
            run_replay(broken, told, "few", questions, ways, ["poisson"], chosen, RowFile(None))
    service.engine.cache.close()
    assert refused.answers == [] and sum(refused.outcomes.values()) == 1
    alone = {row["mode"]: row for row in file.rows.values() if row["rate"] is None}
    assert alone["full"]["cached_tokens"] == 0
    assert 0 < alone["prefix"]["cached_tokens"] < alone["hypic"]["cached_tokens"]
    assert all(row["outcomes"] == {"200": row["n"]} for row in file.rows.values())
    assert found(results.rows, "hypic", "rate held").value >= 2.5
