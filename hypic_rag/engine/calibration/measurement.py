"""What each policy costs in quality, time and bytes, on prompts, measured against full recompute of the same ids."""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hypic_rag.cache import Hit
from hypic_rag.engine.policy import Compose, Policy, Sampling
from hypic_rag.prompt import Ids, Prompt

if TYPE_CHECKING:
    from hypic_rag.engine.engine import SegmentEngine

SEAMS = (0, 4, 8, 16, 32)
COMPOSE: tuple[Compose, ...] = ("exact", "last_state")
ANSWER_TOKENS = 16
FULL = Policy(mode="full")


@dataclass(frozen=True)
class Measurement:
    """One policy over ``n`` prompts; of full recompute itself, the distances are 0 and the shares 1.

    first_kl: KL(full || policy) of the first token's distribution, nats, mean over prompts. kl: the same over every
    token of full's own greedy answer (teacher-forced, with what follows its last token), nats a token.
    same_answer, same_first: shares of prompts with the same greedy answer, and with the same likeliest first token.
    ttft_ms: median, entries in memory. segment_bytes: mean of the entries; 0 where nothing is cached.
    """

    policy: Policy
    n: int
    n_tokens: int
    first_kl: float
    kl: float
    same_answer: float
    same_first: float
    ttft_ms: float
    segment_bytes: float


@dataclass(frozen=True)
class _Sample:
    """One policy on one prompt. kls: (n_tokens,) float32, KL at each token of the answer."""

    kls: Tensor
    same_answer: bool
    same_first: bool
    ttft_ms: float
    entry_bytes: tuple[int, ...]


@dataclass(frozen=True)
class _Full:
    """What full recompute says to a prompt.

    continuation: its answer and one id more. logprobs: (n_tokens, vocabulary) float32 along it. n_chosen: how many
    of its rows decided the answer; the last did if the answer ended there of itself.
    """

    continuation: Ids
    logprobs: Tensor
    n_chosen: int


def candidates(engine: "SegmentEngine") -> list[Policy]:
    """List every seam, composition and isolation prefix (none, or the tokenizer's first token where it has one)."""
    first = engine.tokenizer.bos_token_id
    prefixes: list[Ids] = [()] if first is None else [(), (first,)]
    return [
        Policy(seam_tokens=seam, compose=compose, isolation_prefix=prefix)
        for prefix in prefixes
        for seam in SEAMS
        for compose in COMPOSE
    ]


def prompt_room(engine: "SegmentEngine") -> int:
    """Return the most tokens of a prompt that every policy can be measured on."""
    switch = engine.cache_spec.switch_at
    longest = engine.context_length if switch is None else min(engine.context_length, switch)
    return longest - ANSWER_TOKENS - 1


def measure(
    engine: "SegmentEngine",
    prompts: Sequence[Prompt],
    policies: Sequence[Policy],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Measurement]:
    """Measure full recompute first, then the policies in their order. Entries made here leave the cache when used.

    Prompts have at most ``prompt_room`` tokens; the cache has room for the entries of one.
    on_progress: called with runs done and runs in all, a run being one policy on one prompt.
    """
    samples: dict[Policy, list[_Sample]] = {policy: [] for policy in (FULL, *policies)}
    total = len(prompts) * len(samples)
    engine.generate(Prompt(prompts[0].parts[-1:]), Sampling(1), FULL)  # the first pass of a process sets up torch
    for prompt in prompts:
        for policy, sample in _measure_prompt(engine, prompt, policies):
            samples[policy].append(sample)
            on_progress(sum(map(len, samples.values())), total)
    return [_summary(policy, of) for policy, of in samples.items()]


def token_kl(full: Tensor, other: Tensor) -> Tensor:
    """Return KL(full || other) of each row, nats. full, other: (n, vocabulary) float32 log-probabilities; returns (n,).

    A token that ``full`` rules out adds nothing; one that only ``other`` rules out makes the row infinite.
    """
    p = full.exp()
    return torch.where(p > 0, p * (full - other), 0.0).sum(-1).clamp(min=0)


def _measure_prompt(
    engine: "SegmentEngine", prompt: Prompt, policies: Sequence[Policy]
) -> Iterator[tuple[Policy, _Sample]]:
    generation = engine.generate(prompt, Sampling(ANSWER_TOKENS), FULL)
    # The last id is never read: only the distribution before it counts, which is that of what follows the answer.
    continuation = (*generation.token_ids, prompt.token_ids[-1])
    logprobs = engine.score(prompt, continuation, FULL).logprobs
    full = _Full(continuation, logprobs, len(generation.token_ids) + (generation.finish_reason == "stop"))
    yield FULL, _Sample(torch.zeros(len(continuation)), True, True, generation.report.ttft_ms, ())
    alike: dict[tuple[int, Ids], list[Policy]] = {}  # those that share entries
    for policy in policies:
        alike.setdefault((policy.seam_tokens, policy.isolation_prefix), []).append(policy)
    for group in alike.values():
        with _prefilled(engine, prompt, group[0]) as entry_bytes:
            for policy in group:
                yield policy, _sample(engine, prompt, policy, full, entry_bytes)


def _sample(
    engine: "SegmentEngine", prompt: Prompt, policy: Policy, full: _Full, entry_bytes: tuple[int, ...]
) -> _Sample:
    logprobs = engine.score(prompt, full.continuation, policy).logprobs
    # Along full's answer the likeliest tokens are that answer if and only if the policy would draw it too.
    same = logprobs.argmax(-1) == full.logprobs.argmax(-1)
    return _Sample(
        token_kl(full.logprobs, logprobs),
        bool(same[: full.n_chosen].all()),
        bool(same[0]),
        engine.generate(prompt, Sampling(1), policy).report.ttft_ms,
        entry_bytes,
    )


@contextlib.contextmanager
def _prefilled(engine: "SegmentEngine", prompt: Prompt, policy: Policy) -> Iterator[tuple[int, ...]]:
    """Yield the bytes of each of the prompt's entries, which are in the cache meanwhile;
    those that were there before stay."""
    keys = [engine.segment_key(ids, policy=policy) for ids in prompt.documents if len(ids) > policy.seam_tokens]
    keys += [engine.segment_key(p.ids, "leading", policy) for p in prompt.parts if p.kind == "leading"]
    new = {key.digest for key in keys if engine.cache.contains(key) is None}
    try:
        engine.prefill(prompt.documents, policy=policy)
        found = [engine.cache.lookup(key) for key in keys if key.kind == "document"]
        yield tuple(hit.nbytes for hit in found if isinstance(hit, Hit))
    finally:
        engine.cache.discard(new)


def _summary(policy: Policy, samples: Sequence[_Sample]) -> Measurement:
    kls = torch.cat([sample.kls for sample in samples])
    entry_bytes = [n for sample in samples for n in sample.entry_bytes]
    return Measurement(
        policy=policy,
        n=len(samples),
        n_tokens=len(kls),
        first_kl=statistics.fmean(float(sample.kls[0]) for sample in samples),
        kl=float(kls.mean()),
        same_answer=statistics.fmean(sample.same_answer for sample in samples),
        same_first=statistics.fmean(sample.same_first for sample in samples),
        ttft_ms=statistics.median(sample.ttft_ms for sample in samples),
        segment_bytes=statistics.fmean(entry_bytes) if entry_bytes else 0.0,
    )
