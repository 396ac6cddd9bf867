"""Questions to a store, one after another: each turn finds documents and resumes from the turn before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llama_index.core.schema import NodeWithScore

from hypic_rag.engine import Generation, Policy, Sampling, SegmentEngine
from hypic_rag.prompt import Ids, Prompt, PromptFormat, fit_documents
from hypic_rag.retrieval import HypicLLM, Store, StoreRetriever
from hypic_rag.retrieval.question_log import log_question
from hypic_rag.retrieval.rendering import title_and_text
from hypic_rag.retrieval.synthesizer import NOTHING_RETRIEVED


@dataclass(frozen=True)
class Answer:
    """One turn. ``prompt`` and ``generation`` are None where nothing was retrieved.

    sources: the documents new in this turn, the best first. n_dropped: retrieved, but there was no room.
    """

    question: str
    text: str
    sources: tuple[NodeWithScore, ...] = ()
    n_dropped: int = 0
    prompt: Prompt | None = None
    generation: Generation | None = None


class OutOfContext(Exception):
    """The conversation and the next question do not fit the model's context together."""

    def __init__(self, n_tokens: int, context_length: int):
        super().__init__(f"{n_tokens} tokens, with the new question, of a context of {context_length}")


class Conversation:
    """``ask`` yields the answer's text as it comes; afterwards ``last`` is the whole answer.

    log_questions: keep in the store what is asked first; later questions lean on the turns before them.
    """

    def __init__(
        self,
        engine: SegmentEngine,
        store: Store,
        policy: Policy,
        sampling: Sampling,
        top_k: int,
        log_questions: bool = False,
    ):
        self.engine = engine
        self.policy = policy
        self.sampling = sampling
        self._log_folder = store.folder if log_questions else None
        self._retriever = StoreRetriever(store, top_k)
        self._llm = HypicLLM(engine=engine, max_new_tokens=sampling.max_new_tokens)
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the turns so far."""
        self.last = Answer("", "")
        self._prompt: Prompt | None = None
        self._answer_ids: tuple[int, ...] = ()
        self._told: set[str] = set()  # the chunks that the conversation holds

    def ask(self, question: str) -> Iterator[str]:
        """Raises BadInput for an empty question; ContextTooLong on a first turn, OutOfContext on others."""
        retrieved = self._retriever.retrieve(question)
        if self._log_folder is not None and self._prompt is None:
            log_question(self._log_folder, question)
        if not retrieved:
            self.last = Answer(question, NOTHING_RETRIEVED)
            yield NOTHING_RETRIEVED
            return
        new = [one for one in retrieved if one.node.node_id not in self._told]
        prompt, n_dropped = self._next_prompt(question, new)
        sources = tuple(new[: len(new) - n_dropped])
        for event in self.engine.stream(prompt, self.sampling, self.policy):
            if event.text:
                yield event.text
            if done := event.generation:
                self.last = Answer(question, done.text, sources, n_dropped, prompt, done)
        assert self.last.generation is not None
        self._prompt, self._answer_ids = prompt, self.last.generation.token_ids
        self._told |= {one.node.node_id for one in sources}

    def warm_up(self) -> None:
        """The first passes of a process set up torch; no side of a comparison should carry that."""
        prompt = self.engine.format.prompt("Ready?", [("", "A text to warm up with. " * 8)])
        for policy in (self.policy, Policy(mode="full")):
            self.engine.generate(prompt, Sampling(1), policy)

    def recompute(self) -> Generation | None:
        """The last prompt once more, in full; None where there was none."""
        if self.last.prompt is None:
            return None
        return self.engine.generate(self.last.prompt, self.sampling, Policy(mode="full"))

    def _next_prompt(self, question: str, new: list[NodeWithScore]) -> tuple[Prompt, int]:
        """New documents for which there is no room are left out, the last first; earlier turns stay whole."""
        documents = [title_and_text(one.node) for one in new]
        if self._prompt is None:
            return self._llm.documents_prompt(question, documents)
        segments = [self.engine.format.document(text, title) for title, text in documents]
        room = self.engine.context_length - self.sampling.max_new_tokens
        prompt, n_dropped = follow_up(self.engine.format, self._prompt, self._answer_ids, question, segments, room)
        if prompt.n_tokens > room:
            raise OutOfContext(prompt.n_tokens, self.engine.context_length)
        return prompt, n_dropped


def follow_up(
    form: PromptFormat, before: Prompt, answer_ids: Sequence[int], question: str, documents: Sequence[Ids], room: int
) -> tuple[Prompt, int]:
    """The next turn, and how many of its documents were left out, the last first, to have at most ``room`` tokens.

    Earlier turns stay whole, so that it may be longer even without any.
    """
    prompt, n_dropped = fit_documents(form.follow_up(before, answer_ids, question, documents), room)
    if n_dropped > len(documents):
        return form.follow_up(before, answer_ids, question), len(documents)
    return prompt, n_dropped
