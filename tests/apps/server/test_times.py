"""What is told of a request's time: from its arrival on; and what the server adds to the engine's own."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
import pytest
from hypic_apps.server.app_state import Service
from hypic_apps.server.chat import rag_chat
from tiny_server import Running, running, turns

PATH = "/v1/chat/completions"
PREPARING = 0.3  # seconds


def counted(server: Running, name: str, **labels: str) -> float:
    return server.service.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = rag_chat.prepare

    def slowly(*given: Any) -> Any:
        time.sleep(PREPARING)
        return prepare(*given)

    monkeypatch.setattr(rag_chat, "prepare", slowly)


def test_times_run_from_the_arrival(server: Running, slow: None) -> None:
    first, queue = "hypic_time_to_first_token_seconds_sum", "hypic_request_queue_time_seconds_sum"
    before = counted(server, first, tenant="local"), counted(server, queue)
    ms = server.chat("Who?", max_tokens=2)["hypic"]["ms"]
    assert ms["queue"] >= 1e3 * PREPARING
    assert ms["total"] >= ms["queue"] + ms["ttft"]
    assert counted(server, first, tenant="local") - before[0] >= PREPARING
    assert counted(server, queue) - before[1] >= PREPARING


def test_the_time_limit_runs_from_the_arrival(make_service: Callable[..., Service], slow: None) -> None:
    with running(make_service(request_seconds=PREPARING / 3)) as server:
        began = time.monotonic()
        assert server.post(PATH, messages=turns("Who?")).status_code == 504
        assert time.monotonic() - began < 2 * PREPARING
        assert counted(server, "hypic_requests_total", tenant="local", outcome="timeout") == 1


def test_how_a_request_ended_that_never_ran_is_counted(server: Running) -> None:
    invalid = {"tenant": "local", "outcome": "invalid"}
    before = counted(server, "hypic_requests_total", **invalid)
    assert server.post(PATH, messages=turns("word " * 9000)).status_code == 400
    assert server.post(PATH, messages=turns("a"), collection="none").status_code == 404
    assert counted(server, "hypic_requests_total", **invalid) == before + 2


def test_a_full_queue_refuses_before_it_reads(make_service: Callable[..., Service]) -> None:
    with running(make_service(max_running=1, max_waiting=0)) as server:
        long: Any = {"messages": turns("Go on."), "max_tokens": 8000, "stream": True}
        with httpx.stream("POST", server.url + PATH, json=long, timeout=30) as response:
            next(lines := response.iter_lines())
            full = httpx.get(server.url + "/ready")
            assert full.status_code == 503 and full.json()["error"]["code"] == "overloaded"
            assert httpx.get(server.url + "/health").status_code == 200
            refused = httpx.post(server.url + PATH, content=b"{ this is no JSON", timeout=30)
            assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
            lines.close()
        assert server.idle(5)
        assert httpx.get(server.url + "/ready").status_code == 200


def test_what_the_server_adds_to_the_first_token(server: Running) -> None:
    """Some milliseconds on an idle machine; the bound is what no busy one should reach."""
    body: Any = {"messages": turns("Who?"), "max_tokens": 2, "stream": True}
    added = []
    with httpx.Client(timeout=30) as client:
        for _ in range(15):
            began, first = time.perf_counter(), 0.0
            with client.stream("POST", server.url + PATH, json=body) as response:
                for line in response.iter_lines():
                    if not first and '"content":' in line and '"role"' not in line:
                        first = time.perf_counter()
                    if '"hypic"' in line:
                        ttft = json.loads(line.removeprefix("data: "))["hypic"]["ms"]["ttft"]
            added.append(1e3 * (first - began) - ttft)
    assert median(added) < 60, sorted(added)
