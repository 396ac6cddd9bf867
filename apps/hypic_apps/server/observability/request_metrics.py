"""What is measured of requests to the engine, from their arrival to their last token."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from hypic_apps.server.errors import ApiError, Busy, ShuttingDown, TooSlow
from hypic_apps.server.observability import logs
from hypic_rag.collections.tenant import tenant_of
from hypic_rag.engine import Generation
from hypic_rag.errors import BadInput, ContextTooLong

Outcome = Literal["ok", "refused", "cancelled", "timeout", "invalid", "error"]

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_TOKENS = (0.002, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
FINISH_REASONS = ("stop", "length", "repetition")
SEGMENT_TIERS = ("device", "host", "disk", "remote", "conversation", "live", "missed")
LENGTHS = tuple(n * 10**power for power in range(6) for n in (1, 2, 5))  # tokens, up to 500,000
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
        self.prefill = Histogram(
            "hypic_request_prefill_time_seconds",
            "From a request's admission to its first token, of requests that ended ok.",
            buckets=FIRST_TOKEN,
            registry=registry,
        )
        self.decode = Histogram(
            "hypic_request_decode_time_seconds",
            "From a request's first token to its last, of requests that ended ok.",
            buckets=WHOLE,
            registry=registry,
        )
        self.prompt_length = Histogram(
            "hypic_request_prompt_tokens",
            "Tokens of a prompt, of requests that ended ok.",
            buckets=LENGTHS,
            registry=registry,
        )
        self.answer_length = Histogram(
            "hypic_request_generation_tokens",
            "Tokens of an answer, of requests that ended ok.",
            buckets=LENGTHS,
            registry=registry,
        )
        self.success = Counter(
            "hypic_request_success_total",
            "Requests that ended ok, by why: stop, length, repetition (the answer went round in circles).",
            ["finished_reason"],
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
        self.tenant_prompt_tokens = Counter(
            "hypic_tenant_prompt_tokens_total",
            "Tokens of prompts by tenant, of requests that ended ok.",
            ["tenant"],
            registry=registry,
        )
        self.tenant_generated_tokens = Counter(
            "hypic_tenant_generation_tokens_total",
            "Tokens of answers by tenant, of requests that ended ok.",
            ["tenant"],
            registry=registry,
        )
        self.on_used: Callable[[str, int, int], None] | None = None  # told a key's id, tokens of prompt and answer
        self._tenants: set[str] = set()
        for reason in FINISH_REASONS:  # there from the start, or the first of each would be no increase
            self.success.labels(reason)
        for tier in SEGMENT_TIERS:
            self.segments.labels(tier)

    def begin(self, tenant: str) -> None:
        """Let a tenant's counters be there, as zeros."""
        if tenant not in self._tenants:
            self._tenants.add(tenant)
            for outcome in get_args(Outcome):
                self.requests.labels(tenant, outcome)
            self.tenant_prompt_tokens.labels(tenant)
            self.tenant_generated_tokens.labels(tenant)

    def watch(self, namespace: str, arrived: float | None = None) -> "RequestTimer":
        """arrived: of time.monotonic; None: now."""
        tenant = tenant_of(namespace)
        self.begin(tenant)
        return RequestTimer(self, tenant, time.monotonic() if arrived is None else arrived)


class RequestTimer:
    """The times of one request. The loop calls ``admitted``, then ``token`` for each, and in any case ``ended``, before
    it tells the client: then the line in the log has the tokens. What follows the first ``ended`` changes nothing.

    arrived: of time.monotonic.
    """

    def __init__(self, metrics: RequestMetrics, tenant: str, arrived: float):
        self._metrics, self._tenant, self.arrived = metrics, tenant, arrived
        self._first = self._admitted = 0.0
        self._last: dict[int, float] = {}
        self._ended = False
        self._line = logs.line()

    def admitted(self) -> None:
        self._admitted = time.monotonic()
        self._metrics.queue.observe(self._admitted - self.arrived)

    def token(self, index: int = 0) -> None:
        """index: of the answer, where there are several."""
        now = time.monotonic()
        if index in self._last:
            self._metrics.between_tokens.observe(now - self._last[index])
        elif not self._last:
            self._first = now
            self._metrics.first_token.labels(self._tenant).observe(now - self.arrived)
        self._last[index] = now
        self._metrics.generated_tokens.inc()

    def ended(self, outcome: Outcome, *generations: Generation) -> None:
        """generations: where it ended ok, one an answer; of one prompt, which was run once."""
        if self._ended:
            return
        self._ended = True
        self._metrics.requests.labels(self._tenant, outcome).inc()
        self._line["outcome"] = outcome
        if not generations:
            return
        report, n_generated = generations[0].report, sum(len(one.token_ids) for one in generations)
        self._metrics.whole.observe(time.monotonic() - self.arrived)
        self._metrics.prompt_tokens.inc(report.prompt_tokens)
        self._metrics.computed_tokens.inc(report.computed_tokens)
        self._metrics.cached_tokens.inc(report.cached_tokens)
        self._metrics.prompt_length.observe(report.prompt_tokens)
        for generation in generations:
            self._metrics.success.labels(generation.finish_reason).inc()
            self._metrics.answer_length.observe(len(generation.token_ids))
        self._metrics.tenant_prompt_tokens.labels(self._tenant).inc(report.prompt_tokens)
        self._metrics.tenant_generated_tokens.labels(self._tenant).inc(n_generated)
        if self._metrics.on_used is not None and isinstance(key := self._line.get("key"), str):
            self._metrics.on_used(key, report.prompt_tokens, n_generated)
        if self._admitted and self._first:
            self._metrics.prefill.observe(self._first - self._admitted)
            self._metrics.decode.observe(max(self._last.values()) - self._first)
        for use in report.segments:
            self._metrics.segments.labels(use.tier or "missed").inc()
        self._line["prompt_tokens"] = report.prompt_tokens
        self._line["computed_tokens"] = report.computed_tokens
        self._line["generated_tokens"] = n_generated
