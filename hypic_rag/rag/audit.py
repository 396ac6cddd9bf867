"""Questions replayed over a store, out of cached segments and in full: how often both say the same."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hypic_rag.engine import Policy, Sampling, SegmentEngine
from hypic_rag.engine.calibration.measurement import FULL, token_kl
from hypic_rag.errors import BadInput, HypicError
from hypic_rag.prompt import Prompt
from hypic_rag.rag.answer_length import answer_tokens
from hypic_rag.rag.order import DEFAULT_ORDER, Order
from hypic_rag.rag.pipeline import RagPipeline, RagRequest
from hypic_rag.rag.search import Retriever, StoreSearch
from hypic_rag.rag.turns import Message
from hypic_rag.rag.unanswered import no_documents
from hypic_rag.rag.warming import warm_up
from hypic_rag.retrieval.store import Store


@dataclass(frozen=True)
class Replay:
    """One question in both modes. first_kl: KL(full || policy) of the first token, nats."""

    question: str
    answer: str
    full_answer: str
    same_first: bool
    first_kl: float
    ttft_ms: float
    full_ttft_ms: float
    n_segments: int
    n_from_cache: int

    @property
    def same_answer(self) -> bool:
        return self.answer == self.full_answer


@dataclass(frozen=True)
class NotReplayed:
    """A question that could not be asked, and why."""

    question: str
    reason: str


@dataclass(frozen=True)
class AuditReport:
    """At least one replay. Shares are of the replays; times are medians."""

    policy: Policy
    replays: tuple[Replay, ...]
    failures: tuple[NotReplayed, ...]

    @property
    def n(self) -> int:
        return len(self.replays)

    @property
    def same_answer(self) -> float:
        return statistics.fmean(one.same_answer for one in self.replays)

    @property
    def same_first(self) -> float:
        return statistics.fmean(one.same_first for one in self.replays)

    @property
    def first_kl_mean(self) -> float:
        return statistics.fmean(one.first_kl for one in self.replays)

    @property
    def first_kl_worst(self) -> float:
        return max(one.first_kl for one in self.replays)

    @property
    def ttft_ms(self) -> float:
        return statistics.median(one.ttft_ms for one in self.replays)

    @property
    def full_ttft_ms(self) -> float:
        return statistics.median(one.full_ttft_ms for one in self.replays)

    @property
    def disagreements(self) -> tuple[Replay, ...]:
        return tuple(one for one in self.replays if not one.same_answer)


def draw_questions(questions: Sequence[str], n: int, seed: int) -> list[str]:
    """Draw up to ``n`` different questions at random, in the order in which they were asked."""
    different = list(dict.fromkeys(questions))
    drawn = random.Random(seed).sample(range(len(different)), min(n, len(different)))
    return [different[i] for i in sorted(drawn)]


def audit(
    engine: SegmentEngine,
    store: Store,
    questions: Sequence[str],
    policy: Policy,
    *,
    top_k: int = 5,
    order: Order = DEFAULT_ORDER,
    max_new_tokens: int | None = None,
    search: Retriever | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> AuditReport:
    """Retrieve for each question, answer greedily under ``policy`` and in full, and compare.

    Segments that are not in the cache are made, as for any question. One that cannot be asked is listed, and the
    others are replayed. search: over the store; None for all of it. max_new_tokens: None for what suits each question.
    Raises BadInput for a policy that recomputes in full, an empty store, or no question that could be replayed.
    """
    if policy.mode == "full":
        raise BadInput("the policy in force is full recompute, so there is nothing to compare: give --mode hypic")
    if not store.counts()[1]:
        raise BadInput(no_documents("store", store.folder))
    search = search or StoreSearch(store)
    pipeline = RagPipeline(engine)
    warm_up(engine, policy)
    replays, failures = [], []
    for done, question in enumerate(questions, 1):
        sampling = Sampling(max_new_tokens or answer_tokens(question))
        try:
            ready = pipeline.prepare(
                RagRequest((Message("user", question),), policy, sampling, max_new_tokens, top_k=top_k, order=order),
                retriever=search,
            )
            replays.append(_replay(engine, question, ready.prompt, policy, ready.sampling))
        except HypicError as error:
            failures.append(NotReplayed(question, str(error)))
        on_progress(done, len(questions))
    if not replays:
        why = f": {failures[0].reason}" if failures else ""
        raise BadInput(f"none of {len(questions)} questions could be replayed{why}")
    return AuditReport(policy, tuple(replays), tuple(failures))


def _replay(engine: SegmentEngine, question: str, prompt: Prompt, policy: Policy, sampling: Sampling) -> Replay:
    assembled, full = (engine.generate(prompt, sampling, mode) for mode in (policy, FULL))
    own, wanted = (_first_logprobs(engine, prompt, mode) for mode in (policy, FULL))
    return Replay(
        question=question,
        answer=assembled.text,
        full_answer=full.text,
        same_first=bool(own.argmax() == wanted.argmax()),
        first_kl=float(token_kl(wanted[None], own[None])),
        ttft_ms=assembled.report.ttft_ms,
        full_ttft_ms=full.report.ttft_ms,
        n_segments=len(assembled.report.segments),
        n_from_cache=assembled.report.n_from_cache,
    )


def _first_logprobs(engine: SegmentEngine, prompt: Prompt, policy: Policy) -> Tensor:
    """Return (vocabulary,). The first token's distribution does not depend on the answer that is scored."""
    return engine.score(prompt, prompt.token_ids[-1:], policy).first_logprobs
