"""hypic-qualify load: its clients against a real server over a tiny engine, and what its figures are made of."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypic_eval.table import markdown
from hypic_eval.task import read_questions
from hypic_qualify.agreement import GAP, differing, explained
from hypic_qualify.clients import Answered, Load, retry_after
from hypic_qualify.load import Measured, answer_rows, measure_load, summarise
from hypic_qualify.watching import HealthLog, settled_and_end

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "apps"), str(TESTS / "apps" / "server")]  # collecting, tiny_server

DOCUMENTS = (("Ruby  Lake", "Ruby Lake is deep."), ("", "Jade Lake is not."))


def answered(question: str, text: str, documents: tuple[tuple[str, str], ...] = DOCUMENTS) -> Answered:
    told = {"mode": "hypic", "seam_tokens": 8, "compose": "exact", "ms": {"queue": 1.0, "ttft": 2.0}}
    return Answered(question, text, 0.5, 10.0, 20.0, told, documents)


def test_a_server_is_asked_from_many_connections(few: Path, tmp_path: Path) -> None:
    from collecting import make_service
    from tiny_server import running

    service = make_service(tmp_path / "server", max_running=2, max_waiting=2)
    service.loop.max_running, service.loop.max_waiting = 2, 2
    _, questions = read_questions(few, limit=1)
    with running(service) as server:
        measured = measure_load(server.url, questions, 8, 3.0, 4)
        assert server.post("/v1/collections/hypic-eval-load/files").status_code == 404  # it has been removed
    service.engine.cache.close()
    assert measured.model == service.engine.model_name
    assert measured.load.most_open == 8
    assert set(measured.load.outcomes) == {"200", "503"}, measured.load.told
    assert "overloaded" in measured.load.told["503"]
    assert measured.differing == []
    assert measured.seen.health_ms and not measured.seen.failures
    results = summarise(measured, "few", [])
    assert not results.missed_goals, markdown(results)
    asked = {one.question for one in measured.load.answers}
    assert len(asked) > 1 and measured.alone.outcomes == {"200": len(asked)}
    assert "8 connections" in markdown(results)
    rows = list(answer_rows(measured.load))
    assert len(rows) == measured.load.outcomes["200"] and rows[0]["server_ttft_ms"] > 0


PAUSES = {  # what the header says; seconds, whether that is noted
    "seconds": ("7", 7.0, False),
    "none": (None, 1.0, True),
    "no number": ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0, True),
    "nothing to wait for": ("0", 1.0, True),
    "an hour": ("3600", 1.0, True),
}


@pytest.mark.parametrize("header, seconds, noted", PAUSES.values(), ids=PAUSES)
def test_a_refusal_has_to_say_when_to_come_again(header: str | None, seconds: float, noted: bool) -> None:
    load = Load(1, 1.0)
    assert retry_after(load, header) == seconds
    assert bool(load.outcomes) == noted


def test_memory_is_compared_from_a_fifth_of_the_time_on() -> None:
    loading = [(float(i), 100 + 10 * i) for i in range(20)]  # before, it may grow
    steady = [(float(i), 400) for i in range(20, 100)]
    assert settled_and_end([*loading, *steady], 100) == (400, 400)
    growing = [(float(i), 1000 + i) for i in range(100)]
    assert settled_and_end(growing, 100) == (1022.5, 1097)
    assert settled_and_end([*growing[:50], (50.0, 10**9)], 100) is None  # nothing of the end


def test_every_kind_of_trouble_misses_a_goal() -> None:
    load = Load(3, 10.0, [answered("a", "x")])
    load.outcomes.update({"200": 1, "503": 4, "500": 1, "broken connection": 2})
    memory = [(i / 10, 1000 + i) for i in range(101)]
    measured = Measured("m", load, HealthLog([1.0, 600.0], ["ConnectError"], memory), Load(1, 0, [answered("a", "y")]))
    missed = {row.metric: row.value for row in summarise(measured, "few", []).missed_goals}
    assert missed == {
        "max": 600,
        "anything else": 3,
        "/health failed": 1,
        "memory growth": pytest.approx(7.33, abs=0.01),
    }


class Scored:
    """An engine whose second token is nearly a draw: ``gap`` nats between the two likeliest."""

    def __init__(self, form: Any, gap: float):
        self.format, self.gap, self.prompts = form, gap, []

    def score(self, prompt: Any, ids: Any, policy: Any) -> Any:
        self.prompts.append(prompt)
        logprobs = torch.full((len(ids), 50), -9.0)
        logprobs[:, 7], logprobs[:, 8] = -0.1, -5.0
        logprobs[1, 8] = -0.1 - self.gap
        return SimpleNamespace(logprobs=logprobs)


@pytest.mark.parametrize("gap, is_rounding", [(GAP / 2, True), (2 * GAP, False)])
def test_a_difference_is_rounding_where_the_model_is_of_two_minds(form: Any, gap: float, is_rounding: bool) -> None:
    alone = [answered("a", "The lake"), answered("b", "Yes")]
    loaded = [answered("a", "The lake"), answered("b", "Yes"), *2 * [answered("a", "The sea is")]]
    pairs = differing(alone, loaded)
    assert [n for _, n in pairs] == [2]
    engine: Any = Scored(form, gap)
    [difference] = explained(engine, pairs)
    assert difference.n_times == 2 and difference.is_rounding == is_rounding
    assert engine.prompts[0].documents == (
        form.document("Ruby Lake is deep.", "Ruby Lake"),
        form.document("Jade Lake is not."),
    )


def test_other_documents_are_no_rounding(form: Any) -> None:
    pairs = differing([answered("a", "Yes")], [answered("a", "Yes", DOCUMENTS[:1])])
    [difference] = explained(Scored(form, 0.0), pairs)  # type: ignore[arg-type]
    assert difference.gap is None and not difference.is_rounding
