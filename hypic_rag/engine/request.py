"""One request on its way: what was asked, what was drawn, and the text that is certain so far."""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from threading import Event

import torch

from hypic_rag.engine.detokenizer import Detokenizer
from hypic_rag.engine.outputs import Generation, Report, StepOutput
from hypic_rag.engine.policy import Policy, Sampling
from hypic_rag.engine.repetition import is_cycling
from hypic_rag.engine.segment_manager import SegmentManager
from hypic_rag.engine.state import SequenceState
from hypic_rag.prompt import Part, Prompt


@dataclass(eq=False)
class Request:
    """``limit``: tokens that may still be drawn. ``outputs`` wait for whoever reads them. ``state`` once admitted.
    ``stop`` is set, by any thread, once nobody waits for it. ``is_read``: by a stream, which raises its ``error``."""

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

    def __post_init__(self) -> None:
        self.report = Report(self.policy, self.prompt.n_tokens, 0, 0, (), 0.0, 0.0)
        if self.sampling.temperature > 0:
            self.generator = torch.Generator()
            if self.sampling.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(self.sampling.seed)

    def take(self, token: int) -> StepOutput:
        """Note a drawn token and what it brings."""
        if not self.tokens and not self.first_at:
            self.first_at = time.perf_counter()
        if token in self.ends:
            return self._end("stop", self.stream.finish())
        self.tokens.append(token)
        text = self.stream.push(token)
        if self.stream.stopped:
            return self._end("stop", text)
        if len(self.tokens) >= self.limit:
            return self._end("length", text + self.stream.finish())
        if self.sampling.stop_repetition and is_cycling(self.tokens):
            return self._end("repetition", text + self.stream.finish())
        return StepOutput(self.id, text)

    def cancelled(self) -> StepOutput:
        return self._end("cancelled", "")

    @property
    def parts_run(self) -> list[Part]:
        """What the state holds now: the prompt and the drawn tokens that were fed back (the last was not, unless
        an end token followed it)."""
        fed = self.tokens[: self.state.position - self.prompt.n_tokens] if self.state else []
        return [*self.prompt.parts, Part("live", tuple(fed))] if fed else list(self.prompt.parts)

    def _end(self, reason: str, text: str) -> StepOutput:
        self.finished = True
        now = time.perf_counter()
        first = self.first_at or now
        report = replace(self.report, ttft_ms=1e3 * (first - self.began), decode_ms=1e3 * (now - first))
        generation = Generation(self.stream.text, tuple(self.tokens), reason, report)
        return StepOutput(self.id, text, generation)
