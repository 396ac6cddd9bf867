"""What is measured beside requests to the engine: the cache, HTTP, ingestion."""

import math
import time
from collections import Counter as Counting
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hypic_apps.server.chat.engine_loop import EngineLoop
from hypic_rag import __version__
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.engine import SegmentEngine

UNFINISHED = ("queued", "parsing", "prefilling")  # of a file's status
MISS_REASONS = (
    *("never_seen", "evicted", "not_stored", "deleted", "missing", "truncated", "damaged", "unreadable"),
    *("other_version", "wrong_key", "wrong_shape"),
)


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

        for outcome in ("ready", "failed", "cancelled"):
            self._files.labels(outcome)

    def watch_queue(self, database: CollectionDatabase) -> None:
        """Tell of the files that wait, too."""
        self.registry.register(IngestQueueCollector(database))

    def exposed(self, model_name: str) -> "Exposed":
        """Return what Prometheus is given: every series of ours says of which model it is."""
        return Exposed(self.registry, {"model_name": model_name})

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


class Exposed:
    """A registry whose series have these labels as well: prometheus_client knows no constant ones."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]):
        self._registry, self._labels = registry, labels

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if family.name.startswith("hypic_"):
                family.samples = [one._replace(labels={**self._labels, **one.labels}) for one in family.samples]
            yield family


class IngestQueueCollector(Collector):
    """The files that were taken and are not done, from the database."""

    def __init__(self, database: CollectionDatabase):
        self.database = database

    def collect(self) -> Iterator[Metric]:
        with self.database.reading() as db:
            query = f"SELECT status, created_at FROM files WHERE status IN ({', '.join('?' * len(UNFINISHED))})"
            found = db.execute(query, UNFINISHED).fetchall()
        n = Counting(row["status"] for row in found)
        files = GaugeMetricFamily(
            "hypic_ingest_queue_files",
            "Files that were taken and are not done, by how far they are.",
            labels=["status"],
        )
        for status in UNFINISHED:
            files.add_metric([status], n[status])
        yield files
        age = max((time.time() - row["created_at"] for row in found), default=0.0)
        yield _gauge(
            "hypic_ingest_queue_age_seconds", "Since the oldest of these came in; 0 without any.", max(0.0, age)
        )


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
        for reason, n in {**dict.fromkeys(MISS_REASONS, 0), **stats.misses}.items():
            misses.add_metric([reason], n)
        yield from (entries, nbytes, budget, hits, evicted, dropped, degraded, misses)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
