"""What is told of an answer: where its tokens came from and where the time went."""

from dataclasses import dataclass

from torch import Tensor

from hypic_rag.engine.policy import Policy
from hypic_rag.errors import GrammarTooComplex, RequestTooLarge


@dataclass(frozen=True)
class SegmentUse:
    """One leading or document segment of a prompt.

    tier: ``device``, ``host`` or ``disk`` where it came from the cache, ``conversation`` where an earlier turn's state
    held it, ``live`` where it was run as rows (short segments, full mode), None where it was missing and prefilled;
    ``miss_reason`` says why then.
    """

    n_tokens: int
    tier: str | None
    miss_reason: str | None = None


@dataclass(frozen=True)
class Report:
    """Tokens are counted over the prompt; times in milliseconds.

    computed_tokens: rows run for the prompt and tokens prefilled for missing segments. ttft_ms runs from the
    prompt's ids to the first token's id, both on the host, and contains prefill_ms and assemble_ms.
    segments: of the documents, in the prompt's order.
    """

    policy: Policy
    prompt_tokens: int
    computed_tokens: int
    resumed_tokens: int
    segments: tuple[SegmentUse, ...]
    prefill_ms: float
    assemble_ms: float
    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    leading: SegmentUse | None = None

    @property
    def cached_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.computed_tokens)

    @property
    def n_from_cache(self) -> int:
        """Document segments that were not computed for this prompt."""
        return sum(use.tier in ("device", "host", "disk", "remote", "conversation") for use in self.segments)


@dataclass(frozen=True)
class TokenLogprobs:
    """logprob: of the token that was drawn, in nats. top: (token id, its logprob), the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Generation:
    """finish_reason: ``stop`` (end token or stop string), ``length``, ``repetition`` (it went round in circles) or
    ``cancelled``. token_ids: without end token. logprobs: one a token, where they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    report: Report
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class StepOutput:
    """A request's progress in one step; ``generation`` is there when it is finished, ``error`` where it never can be:
    larger than the device's pools, or of a form that cannot be followed. logprobs: of the token drawn, whose text may
    come later."""

    request_id: int
    text: str
    generation: Generation | None = None
    error: RequestTooLarge | GrammarTooComplex | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class StreamEvent:
    """New text of one request; ``generation`` on the last event. logprobs: as in ``StepOutput``. index: of the answer,
    where a request has several."""

    text: str
    generation: Generation | None = None
    logprobs: TokenLogprobs | None = None
    index: int = 0


@dataclass(frozen=True)
class Score:
    """nll: mean negative log-likelihood of the answer's tokens, nats.

    logprobs: (n_tokens, vocabulary) float32 on the CPU; row i is the distribution from which token i would be drawn.
    """

    nll: float
    n_tokens: int
    logprobs: Tensor
    report: Report

    @property
    def first_logprobs(self) -> Tensor:
        """(vocabulary,) float32: of the first token."""
        return self.logprobs[0]


@dataclass(frozen=True)
class PrefillReport:
    """n_tokens: computed. nbytes: of the entries made, as stored. lost: digests of those that no tier keeps (see
    ``SegmentCache.standing``), since the disk, say, is full."""

    n_segments: int
    n_hits: int
    n_prefilled: int
    n_tokens: int
    nbytes: int
    seconds: float
    lost: frozenset[str] = frozenset()
