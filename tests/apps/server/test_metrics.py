"""What Prometheus is told: of requests by a loop that follows the script, of the cache, of HTTP; and the dashboard."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from hypic_apps.server.chat.engine_loop import EngineLoop
from hypic_apps.server.errors import Busy, ShuttingDown, TooSlow
from hypic_apps.server.observability import logs, metrics, request_metrics
from hypic_apps.server.observability.request_metrics import RequestMetrics, outcome_of
from operated import client, make_service

from hypic_rag.engine import Generation, Policy, Sampling
from hypic_rag.engine.outputs import Report, SegmentUse
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.prompt import Prompt

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "engine"))  # for tiny
sys.path.insert(0, str(ROOT / "tests" / "cache"))  # for cache_samples

USES = (SegmentUse(100, "host"), SegmentUse(100, None, "never_seen"), SegmentUse(5, "live"), SegmentUse(9, "host"))
DONE = Generation("a b", (1, 2, 3), "length", Report(Policy(), 220, 120, 0, USES, 1.0, 2.0, 3.0, 4.0))


class Clock:
    """Of the loop that follows the script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 100.0
        monkeypatch.setattr(request_metrics, "time", SimpleNamespace(monotonic=lambda: self.now))

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_a_request_is_measured_from_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), RequestMetrics()
    seen = metrics.watch("acme/papers")
    clock.passes(0.5)
    seen.admitted()
    for seconds in (1.5, 0.25, 0.5):
        clock.passes(seconds)
        seen.token()
    seen.ended("ok", DONE)
    seen.ended("cancelled")  # the stream is closed after its end, too

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value("hypic_" + name, labels)

    assert value("request_queue_time_seconds_sum") == 0.5
    assert value("time_to_first_token_seconds_sum", tenant="acme") == 2.0
    assert (value("inter_token_latency_seconds_count"), value("inter_token_latency_seconds_sum")) == (2, 0.75)
    assert value("e2e_request_latency_seconds_sum") == 2.75
    assert value("requests_total", tenant="acme", outcome="ok") == 1
    assert value("requests_total", tenant="acme", outcome="cancelled") == 0
    assert value("request_prefill_time_seconds_sum") == 1.5 and value("request_decode_time_seconds_sum") == 0.75
    assert value("request_success_total", finished_reason="length") == 1
    assert value("request_success_total", finished_reason="stop") == 0
    assert (value("request_prompt_tokens_sum"), value("request_generation_tokens_sum")) == (220, 3)
    assert value("tenant_prompt_tokens_total", tenant="acme") == 220
    assert value("tenant_generation_tokens_total", tenant="acme") == 3
    assert [value(f"prompt_tokens_{name}total") for name in ("", "computed_", "cached_")] == [220, 120, 100]
    assert value("generation_tokens_total") == 3
    assert [value("segments_total", tier=tier) for tier in ("host", "missed", "live")] == [2, 1, 1]


def test_a_request_that_does_not_end_well_is_counted_and_its_times_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), RequestMetrics()
    metrics.watch("a/").ended("refused")
    half = metrics.watch("b/")
    half.admitted()
    clock.passes(1)
    half.token()
    half.ended("timeout")
    found = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
    assert found["hypic_e2e_request_latency_seconds_count"] == 0
    assert found["hypic_generation_tokens_total"] == 1
    outcomes = {
        (sample.labels["tenant"], sample.labels["outcome"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "hypic_requests_total" and sample.value
    }
    assert outcomes == {("a", "refused"), ("b", "timeout")}


ENDS = {
    "queue full": (Busy(3), "refused"),
    "shutting down": (ShuttingDown(), "refused"),
    "too slow": (TooSlow(), "timeout"),
    "too long": (ContextTooLong("x"), "invalid"),
    "bad": (BadInput("x"), "invalid"),
    "ours": (RuntimeError("x"), "error"),
}


@pytest.mark.parametrize("error, outcome", ENDS.values(), ids=ENDS)
def test_an_error_is_an_outcome(error: Exception, outcome: str) -> None:
    assert outcome_of(error) == outcome


def test_the_line_in_the_log_has_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(logs, "line", lambda: told)
    RequestMetrics().watch("acme/").ended("ok", DONE)
    assert told == {"outcome": "ok", "prompt_tokens": 220, "computed_tokens": 120, "generated_tokens": 3}


def test_the_cache_is_read_at_each_scrape(tmp_path: Path) -> None:
    from cache_samples import sample_entry, sample_key

    service = make_service(tmp_path)
    cache = service.engine.cache
    cache.host.budget = sample_entry().nbytes
    read = service.metrics.registry.get_sample_value
    assert read("hypic_cache_entries", {"tier": "host"}) == 0
    first, second = sample_key(1), sample_key(2)
    cache.lookup(first)
    cache.put(first, sample_entry())
    cache.lookup(first)
    cache.put(second, sample_entry())
    cache.lookup(first)
    host = {"tier": "host"}
    assert read("hypic_cache_hits_total", host) == 1
    assert read("hypic_cache_misses_total", {"reason": "never_seen"}) == 1
    assert read("hypic_cache_misses_total", {"reason": "evicted"}) == 1
    assert read("hypic_cache_evictions_total", host) == read("hypic_cache_entries", host) == 1
    assert read("hypic_cache_bytes", host) == read("hypic_cache_budget_bytes", host) == sample_entry().nbytes
    cache.host.budget = None
    assert read("hypic_cache_budget_bytes", host) == float("inf")


def test_ingestion_uploads_and_http_are_counted(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    service.metrics.uploaded(1000)
    service.metrics.prefilled(512, 2)
    service.metrics.ingested("ready")
    with client(service) as http:
        http.get("/v1/whose/a-name")
        http.get("/no-such-path")
        text = http.get("/metrics").text
        opened = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    for line in (
        'hypic_upload_bytes_total{model_name="tiny"} 1000.0',
        'hypic_ingest_prefill_tokens_total{model_name="tiny"} 512.0',
        'hypic_ingest_segments_total{model_name="tiny"} 2.0',
        'hypic_ingested_files_total{model_name="tiny",outcome="ready"} 1.0',
        'hypic_http_requests_total{method="GET",model_name="tiny",route="/v1/whose/{name}",status="200"} 1.0',
        'hypic_http_requests_total{method="GET",model_name="tiny",route="unmatched",status="404"} 1.0',
        'hypic_num_requests_waiting{model_name="tiny"} 0.0',
    ):
        assert line in text.splitlines(), line
    assert "a-name" not in text and 'model="tiny"' in text and "process_resident_memory_bytes" in text
    assert opened.headers["content-type"].startswith("application/openmetrics-text") and "# EOF" in opened.text


def test_the_loop_tells_of_its_requests(tmp_path: Path) -> None:
    import tiny

    engine = tiny.engine("qwen3_5_text")
    loop = EngineLoop(engine, max_running=2, max_waiting=2)
    loop.start()
    prompt = engine.format.prompt("Who?", [("A", "The lighthouse was built by Ada Marrow in 1871."), ("B", "Rain.")])

    async def ask(prompt: Prompt, n_tokens: int, stop_after: int = 1000, seconds: float = 60.0) -> None:
        with loop.stream(prompt, Sampling(n_tokens), engine.policy, "acme/", seconds) as events:
            n = 0
            async for _ in events:
                n += 1
                if n == stop_after:
                    return

    long = Prompt.build((), (), [5] * (engine.context_length + 1))
    asyncio.run(ask(prompt, 4))
    asyncio.run(ask(prompt, 500, stop_after=2))
    with pytest.raises(TooSlow):
        asyncio.run(ask(prompt, 500, seconds=0.001))
    with pytest.raises(ContextTooLong):
        asyncio.run(ask(long, 1))
    loop.close(5.0)
    with pytest.raises(ShuttingDown):
        asyncio.run(ask(prompt, 1))

    def value(name: str, **labels: str) -> float:
        return loop.requests.registry.get_sample_value("hypic_" + name, labels) or 0.0

    ended = {name: value("requests_total", tenant="acme", outcome=name) for name in get_args(request_metrics.Outcome)}
    assert ended == {"ok": 1, "cancelled": 1, "timeout": 1, "invalid": 1, "refused": 1, "error": 0}
    assert 2 <= value("time_to_first_token_seconds_count", tenant="acme") <= 3
    assert 2 <= value("request_queue_time_seconds_count") <= 3
    assert value("e2e_request_latency_seconds_count") == 1
    assert value("prompt_tokens_total") == prompt.n_tokens
    assert value("generation_tokens_total") >= 6


def test_files_that_wait_and_the_oldest_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service(tmp_path)
    read = service.metrics.registry.get_sample_value
    assert read("hypic_ingest_queue_age_seconds") == 0
    with service.database.writing() as db:
        db.execute("INSERT INTO collections (id, tenant, name, created_at) VALUES ('col-1', 'acme', 'papers', 1)")
        rows = [("file-1", 1_000, "ready"), ("file-2", 2_000, "queued"), ("file-3", 3_000, "parsing"),
                ("file-4", 4_000, "queued")]  # fmt: skip
        columns = "id, collection_id, filename, bytes, created_at, status"
        db.executemany(f"INSERT INTO files ({columns}) VALUES (?, 'col-1', 'a', 1, ?, ?)", rows)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(time=lambda: 5_000.0))
    assert read("hypic_ingest_queue_age_seconds") == 3_000
    files = {name: read("hypic_ingest_queue_files", {"status": name}) for name in metrics.UNFINISHED}
    assert files == {"queued": 2, "parsing": 1, "prefilling": 0}


def test_labelled_counters_are_there_before_their_first_event(tmp_path: Path) -> None:
    read = make_service(tmp_path).metrics.registry.get_sample_value
    for name, labels in (
        ("ingested_files", {"outcome": "failed"}),
        ("request_success", {"finished_reason": "repetition"}),
        ("segments", {"tier": "missed"}),
        ("cache_misses", {"reason": "damaged"}),
    ):
        assert read(f"hypic_{name}_total", labels) == 0, name
