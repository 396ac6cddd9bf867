"""One request on its way: what was asked, what was drawn, and the text that is certain so far."""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

import torch
from torch import Tensor

from hypic_rag.engine.detokenizer import Detokenizer
from hypic_rag.engine.grammar import GrammarMatcher
from hypic_rag.engine.outputs import Generation, Report, StepOutput, TokenLogprobs
from hypic_rag.engine.penalties import adjusted
from hypic_rag.engine.policy import Policy, Sampling
from hypic_rag.engine.repetition import is_cycling
from hypic_rag.engine.segment_manager import SegmentManager
from hypic_rag.engine.state import SequenceState
from hypic_rag.prompt import Part, Prompt


@dataclass(eq=False)
class Request:
    """``limit``: tokens that may still be drawn. ``outputs`` wait for whoever reads them. ``state`` once admitted.
    ``stop`` is set, by any thread, once nobody waits for it. ``is_read``: by a stream, which raises its ``error``.
    first: another request of the same prompt, whose prefill this one shares."""

    id: int
    prompt: Prompt
    sampling: Sampling
    policy: Policy
    limit: int
    stream: Detokenizer
    ends: frozenset[int]
    segments: SegmentManager
    stop: Event = field(default_factory=Event)
    is_read: bool = True
    began: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)
    outputs: deque[StepOutput] = field(default_factory=deque)
    state: SequenceState | None = None
    report: Report = field(init=False)
    error: Exception | None = None
    finished: bool = False
    first_at: float = 0.0
    generator: torch.Generator | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    grammar: GrammarMatcher | None = None
    first: "Request | None" = None

    def __post_init__(self) -> None:
        self.report = Report(self.policy, self.prompt.n_tokens, 0, 0, (), 0.0, 0.0)
        if self.sampling.temperature > 0:
            self.generator = torch.Generator()
            if self.sampling.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(self.sampling.seed)

    def adjusted(self, logits: Tensor) -> Tensor:
        """Return what the next token is drawn from. logits: (vocabulary,), the model's; they are not changed.

        Raises GrammarTooComplex.
        """
        if self.sampling.takes_logits_as_they_are:
            return logits
        found = adjusted(logits, self.sampling, self.ends, self._prompt_ids, self.tokens)
        if self.grammar is not None:
            found[~self.grammar.allowed()[: len(found)]] = -torch.inf
        return found

    def take(self, token: int, logprobs: TokenLogprobs | None = None) -> StepOutput:
        """Note a drawn token and what it brings. logprobs: where they were asked for. Raises GrammarTooComplex."""
        if not self.tokens and not self.first_at:
            self.first_at = time.perf_counter()
        if token in self.ends:
            return self._end("stop", self.stream.finish())
        if self.grammar is not None:
            self.grammar.take(token)
        self.tokens.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        text = self.stream.push(token)
        if self.stream.stopped:
            return self._end("stop", text, logprobs)
        if self.grammar is not None and self.grammar.is_complete:
            return self._end("stop", text + self.stream.finish(), logprobs)
        if len(self.tokens) >= self.limit:
            return self._end("length", text + self.stream.finish(), logprobs)
        is_free = self.grammar is None and len(self.tokens) >= self.sampling.min_tokens
        if self.sampling.stop_repetition and is_free and is_cycling(self.tokens):
            return self._end("repetition", text + self.stream.finish(), logprobs)
        return StepOutput(self.id, text, logprobs=logprobs)

    def cancelled(self) -> StepOutput:
        return self._end("cancelled", "")

    @property
    def parts_run(self) -> list[Part]:
        """What the state holds now: the prompt and the drawn tokens that were fed back (the last was not, unless
        an end token followed it)."""
        fed = self.tokens[: self.state.position - self.prompt.n_tokens] if self.state else []
        return [*self.prompt.parts, Part("live", tuple(fed))] if fed else list(self.prompt.parts)

    @cached_property
    def _prompt_ids(self) -> Tensor:
        return torch.tensor(list({*self.prompt.token_ids}))

    def _end(self, reason: str, text: str, logprobs: TokenLogprobs | None = None) -> StepOutput:
        self.finished = True
        now = time.perf_counter()
        first = self.first_at or now
        report = replace(self.report, ttft_ms=1e3 * (first - self.began), decode_ms=1e3 * (now - first))
        generation = Generation(self.stream.text, tuple(self.tokens), reason, report, tuple(self.logprobs))
        return StepOutput(self.id, text, generation, logprobs=logprobs)
