"""What is measured of requests to the engine, from their arrival to their last token."""

import asyncio
import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from hypic_apps.server.errors import ApiError, Busy, ShuttingDown, TooSlow
from hypic_apps.server.observability import logs
from hypic_rag.collections.tenant import tenant_of
from hypic_rag.engine import Generation
from hypic_rag.errors import BadInput, ContextTooLong

Outcome = Literal["ok", "refused", "cancelled", "timeout", "invalid", "error"]

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_TOKENS = (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
WHOLE = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 15, 20, 30, 45, 60, 120, 240, 480)


def outcome_of(error: BaseException) -> Outcome:
    """Say how a request ended that ended with this error."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, (Busy, ShuttingDown)):
        return "refused"
    if isinstance(error, TooSlow):
        return "timeout"
    if isinstance(error, (BadInput, ContextTooLong)) or (isinstance(error, ApiError) and error.status < 500):
        return "invalid"
    return "error"


class RequestMetrics:
    """Names as vLLM's, with hypic_ before them. Safe for threads."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "hypic_requests_total",
            "Requests to the engine, by how they ended: ok; refused (queue full, or shutting down); cancelled (the "
            "client went away); timeout; invalid (too long, say); error.",
            ["tenant", "outcome"],
            registry=registry,
        )
        self.first_token = Histogram(
            "hypic_time_to_first_token_seconds",
            "From a request's arrival to its first token, its time in the queue included.",
            ["tenant"],
            buckets=FIRST_TOKEN,
            registry=registry,
        )
        self.between_tokens = Histogram(
            "hypic_inter_token_latency_seconds",
            "From one token of a request to its next.",
            buckets=BETWEEN_TOKENS,
            registry=registry,
        )
        self.whole = Histogram(
            "hypic_e2e_request_latency_seconds",
            "From a request's arrival to its last token, of requests that ended ok.",
            buckets=WHOLE,
            registry=registry,
        )
        self.queue = Histogram(
            "hypic_request_queue_time_seconds",
            "From a request's arrival to its admission.",
            buckets=(0.001, 0.005, 0.02, *WHOLE),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "hypic_prompt_tokens_total", "Tokens of prompts, of requests that ended ok.", registry=registry
        )
        self.computed_tokens = Counter(
            "hypic_prompt_tokens_computed_total",
            "Of these the rows that were run, and what was prefilled for missing segments.",
            registry=registry,
        )
        self.cached_tokens = Counter(
            "hypic_prompt_tokens_cached_total", "Of these the ones that need not be computed.", registry=registry
        )
        self.generated_tokens = Counter(
            "hypic_generation_tokens_total",
            "Tokens drawn, end tokens and those of unfinished requests included.",
            registry=registry,
        )
        self.segments = Counter(
            "hypic_segments_total",
            "Documents of prompts that ended ok, by where their segment came from: device, host, disk, conversation, "
            "live (run as part of the prompt), missed (prefilled for this prompt).",
            ["tier"],
            registry=registry,
        )

    def watch(self, namespace: str, arrived: float | None = None) -> "RequestTimer":
        """arrived: of time.monotonic; None: now."""
        return RequestTimer(self, tenant_of(namespace), time.monotonic() if arrived is None else arrived)


class RequestTimer:
    """The times of one request. The loop calls ``admitted``, then ``token`` for each, and in any case ``ended``, before
    it tells the client: then the line in the log has the tokens. What follows the first ``ended`` changes nothing.

    arrived: of time.monotonic.
    """

    def __init__(self, metrics: RequestMetrics, tenant: str, arrived: float):
        self._metrics, self._tenant, self.arrived = metrics, tenant, arrived
        self._last = 0.0
        self._ended = False
        self._line = logs.line()

    def admitted(self) -> None:
        self._metrics.queue.observe(time.monotonic() - self.arrived)

    def token(self) -> None:
        now = time.monotonic()
        if self._last:
            self._metrics.between_tokens.observe(now - self._last)
        else:
            self._metrics.first_token.labels(self._tenant).observe(now - self.arrived)
        self._last = now
        self._metrics.generated_tokens.inc()

    def ended(self, outcome: Outcome, generation: Generation | None = None) -> None:
        """generation: where it ended ok."""
        if self._ended:
            return
        self._ended = True
        self._metrics.requests.labels(self._tenant, outcome).inc()
        self._line["outcome"] = outcome
        if generation is None:
            return
        report = generation.report
        self._metrics.whole.observe(time.monotonic() - self.arrived)
        self._metrics.prompt_tokens.inc(report.prompt_tokens)
        self._metrics.computed_tokens.inc(report.computed_tokens)
        self._metrics.cached_tokens.inc(report.cached_tokens)
        for use in report.segments:
            self._metrics.segments.labels(use.tier or "missed").inc()
        self._line["prompt_tokens"] = report.prompt_tokens
        self._line["computed_tokens"] = report.computed_tokens
        self._line["generated_tokens"] = len(generation.token_ids)
