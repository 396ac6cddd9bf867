"""What is measured beside requests to the engine: the cache, HTTP, ingestion."""

import math
from collections.abc import Iterator

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hypic_apps.server.chat.engine_loop import EngineLoop
from hypic_rag import __version__
from hypic_rag.engine import SegmentEngine


class Metrics:
    """One registry with those of ``loop.requests``. Safe for threads."""

    def __init__(self, engine: SegmentEngine, loop: EngineLoop):
        self.registry = registry = loop.requests.registry
        registry.register(ServerCollector(engine, loop))
        ProcessCollector(registry=registry)
        self._http = Counter(
            "hypic_http_requests_total",
            "Answered requests of every path, by its route; 499: the client left before.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._uploads = Counter("hypic_uploads_total", "Files that were uploaded.", registry=registry)
        self._upload_bytes = Counter("hypic_upload_bytes_total", "Bytes of these.", registry=registry)
        self._files = Counter(
            "hypic_ingested_files_total",
            "Files whose ingestion ended, by how: ready, failed, cancelled (deleted meanwhile).",
            ["outcome"],
            registry=registry,
        )
        self._ingested_tokens = Counter(
            "hypic_ingest_prefill_tokens_total", "Tokens prefilled for files that became ready.", registry=registry
        )
        self._ingested_segments = Counter(
            "hypic_ingest_segments_total", "SegmentManager prefilled for files that became ready.", registry=registry
        )

    def count_http(self, method: str, route: str, status: int) -> None:
        self._http.labels(method, route, status).inc()

    def uploaded(self, n_bytes: int) -> None:
        """Count a file that has come in."""
        self._uploads.inc()
        self._upload_bytes.inc(n_bytes)

    def prefilled(self, n_tokens: int, n_segments: int) -> None:
        """Count what was prefilled for a file, once it is whole."""
        self._ingested_tokens.inc(n_tokens)
        self._ingested_segments.inc(n_segments)

    def ingested(self, outcome: str) -> None:
        """Count a file whose ingestion has ended: "ready", "failed" or "cancelled"."""
        self._files.labels(outcome).inc()


class ServerCollector(Collector):
    """Read when Prometheus asks, from the engine, its cache and the loop."""

    def __init__(self, engine: SegmentEngine, loop: EngineLoop):
        self.engine, self.loop = engine, loop

    def collect(self) -> Iterator[Metric]:
        engine, loop = self.engine, self.loop
        about = {
            "version": __version__,
            "model": engine.model_name,
            "mode": engine.policy.mode,
            "seam_tokens": str(engine.policy.seam_tokens),
            "compose": engine.policy.compose,
            "codec": engine.codec.name,
        }
        yield InfoMetricFamily("hypic_server", "Version, model and the policy in force.", about)
        yield _gauge("hypic_num_requests_running", "Requests that share the engine's steps.", loop.n_running)
        yield _gauge("hypic_num_requests_waiting", "Requests that wait for their turn.", loop.n_waiting)
        held = engine.conversations
        yield _gauge("hypic_conversation_bytes", "Of end states held for next turns.", held.nbytes)
        yield _gauge("hypic_conversation_budget_bytes", "The most that these may take.", held.budget)
        yield from self._cache()

    def _cache(self) -> Iterator[Metric]:
        stats = self.engine.cache.stats()
        entries = GaugeMetricFamily("hypic_cache_entries", "SegmentManager in a tier.", labels=["tier"])
        nbytes = GaugeMetricFamily(
            "hypic_cache_bytes", "Bytes of a tier; on a device, those of running requests too.", labels=["tier"]
        )
        budget = GaugeMetricFamily("hypic_cache_budget_bytes", "The most; +Inf without a bound.", labels=["tier"])
        hits = CounterMetricFamily("hypic_cache_hits", "Look-ups that a tier answered.", labels=["tier"])
        evicted = CounterMetricFamily(
            "hypic_cache_evictions", "SegmentManager that left a tier to make room.", labels=["tier"]
        )
        dropped = CounterMetricFamily(
            "hypic_cache_dropped", "SegmentManager that were to go to a remote tier and did not.", labels=["tier"]
        )
        degraded = GaugeMetricFamily(
            "hypic_cache_degraded", "1: reading or writing a tier failed when it was last tried.", labels=["tier"]
        )
        for name, tier in stats.tiers.items():
            if name == "remote":
                dropped.add_metric([name], tier.n_dropped)
            degraded.add_metric([name], tier.state == "degraded")
            entries.add_metric([name], tier.n_entries)
            nbytes.add_metric([name], tier.nbytes)
            budget.add_metric([name], math.inf if tier.budget is None else tier.budget)
            hits.add_metric([name], tier.hits)
            evicted.add_metric([name], tier.n_evicted)
        misses = CounterMetricFamily("hypic_cache_misses", "Look-ups without an entry, and why.", labels=["reason"])
        for reason, n in stats.misses.items():
            misses.add_metric([reason], n)
        yield from (entries, nbytes, budget, hits, evicted, dropped, degraded, misses)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
