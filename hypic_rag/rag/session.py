"""One conversation over passages: each question finds its own and goes on from the turn before."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hypic_rag.engine import Generation, Policy, Sampling, SegmentEngine
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import Prompt
from hypic_rag.rag.answer_length import answer_tokens
from hypic_rag.rag.order import DEFAULT_ORDER, Order
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.pipeline import NothingFound, RagPipeline, RagRequest
from hypic_rag.rag.question_log import log_question
from hypic_rag.rag.search import Retriever
from hypic_rag.rag.turns import Message
from hypic_rag.rag.unanswered import is_answer


@dataclass(frozen=True)
class Answer:
    """One turn. ``prompt``, ``generation`` and ``sampling`` are None where nothing was retrieved.

    sources: the passages new in this turn, in the prompt's order. n_dropped: retrieved, but there was no room.
    """

    question: str
    text: str
    sources: tuple[Passage, ...] = ()
    n_dropped: int = 0
    prompt: Prompt | None = None
    generation: Generation | None = None
    sampling: Sampling | None = None

    @property
    def answered(self) -> bool:
        """Whether it answers; else it says that the documents do not."""
        return self.generation is not None and is_answer(self.text)


class OutOfContext(ContextTooLong):
    """The conversation and the next question do not fit the model's context together."""


class Session:
    """``ask`` yields the answer's text as it comes; afterwards ``last`` is the whole answer.

    log_to: a store's folder, to keep what is asked first; later questions lean on the turns before them. max_tokens: of
    an answer; None for what suits the question. What ``sampling`` has of it is not heeded.
    """

    def __init__(
        self,
        engine: SegmentEngine,
        retriever: Retriever,
        policy: Policy,
        sampling: Sampling,
        top_k: int,
        log_to: Path | None = None,
        order: Order = DEFAULT_ORDER,
        max_tokens: int | None = None,
    ):
        self.engine, self.policy, self.sampling, self.top_k, self.order = engine, policy, sampling, top_k, order
        self.max_tokens = max_tokens
        self._retriever, self._log_to = retriever, log_to
        self._pipeline = RagPipeline(engine)
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the turns so far."""
        self.last = Answer("", "")
        self._messages: tuple[Message, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether the next question is the first."""
        return not self._messages

    def ask(self, question: str) -> Iterator[str]:
        """Ask a question and yield the answer as it comes. Raises BadInput for an empty one; ContextTooLong on a
        first turn, OutOfContext on others."""
        messages = (*self._messages, Message("user", question))
        sampling = replace(self.sampling, max_new_tokens=self.max_tokens or answer_tokens(question))
        if self._log_to is not None and self.is_new and question.strip():
            log_question(self._log_to, question)
        try:
            asked = RagRequest(messages, self.policy, sampling, self.max_tokens, top_k=self.top_k, order=self.order)
            ready = self._pipeline.prepare(asked, retriever=self._retriever)
        except NothingFound as nothing:
            self.last = Answer(question, str(nothing))
            yield self.last.text
            return
        except ContextTooLong as error:
            if self.is_new:
                raise
            raise OutOfContext(str(error)) from error
        sources = ready.sources[len(ready.sources) - ready.n_new :]
        for event in self.engine.stream(ready.prompt, ready.sampling, ready.policy):
            if event.text:
                yield event.text
            if done := event.generation:
                self.last = Answer(question, done.text, sources, ready.n_dropped, ready.prompt, done, ready.sampling)
                self._pipeline.remember(ready, done)
                self._messages = (*messages, Message("assistant", done.text))

    def recompute(self) -> Generation | None:
        """Run the last prompt once more, in full; None where there was none."""
        if self.last.prompt is None:
            return None
        return self.engine.generate(self.last.prompt, self.last.sampling, Policy(mode="full"))
