"""From the messages of a conversation to a prompt over passages that fits, and from its answer to the next turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from hypic_rag.engine import Generation, Policy, Sampling, SegmentEngine
from hypic_rag.engine.detokenizer import decoded
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.prompt import Ids, Prompt
from hypic_rag.rag.follow_up import retrieve_following
from hypic_rag.rag.order import DEFAULT_ORDER, Order, arrange
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.prompting import fit_first_turn, next_turn
from hypic_rag.rag.search import Retriever
from hypic_rag.rag.turns import Message, Setting, Turn, Turns
from hypic_rag.rag.unanswered import NOTHING_RELEVANT

KEPT_LENGTH = 4096  # characters; longer documents are not chunks


class NothingFound(BadInput):
    """The first question of a conversation found nothing to answer from."""


@dataclass(frozen=True)
class RagRequest:
    """What is wanted. max_tokens: of the answer; None for ``sampling``'s, lowered to the room there is.

    passages: that came with the question, in their order; none, and no retriever either make it a plain conversation.
    order: in which passages that were found stand in the prompt.
    """

    messages: tuple[Message, ...]
    policy: Policy
    sampling: Sampling
    max_tokens: int | None = None
    passages: tuple[Passage, ...] | None = None
    top_k: int = 5
    order: Order = DEFAULT_ORDER

    def kept_for_answer(self, context_length: int) -> int:
        """Return how many tokens documents leave free: what is asked for, up to half of the context; where nothing is,
        of a short context a quarter."""
        if self.max_tokens is not None:
            return min(self.max_tokens, context_length // 2)
        return min(self.sampling.max_new_tokens, context_length // 4)


@dataclass(frozen=True)
class PreparedRequest:
    """A prompt that fits. sources: of its documents. setting, messages: to be remembered by; None: not at all."""

    prompt: Prompt
    sampling: Sampling
    policy: Policy
    namespace: str
    sources: tuple[Passage, ...] = ()
    n_dropped: int = 0
    n_new: int = 0  # of the sources: those of the last question
    setting: Setting | None = None
    messages: tuple[Message, ...] = ()


class RagPipeline:
    """For any number of conversations and threads; every method may block.

    turns: finished ones, so that a conversation goes on from the very ids it ended with.
    """

    def __init__(self, engine: SegmentEngine, turns: Turns | None = None):
        self.engine = engine
        self.turns = Turns() if turns is None else turns
        form = engine.format
        # By namespace, so that nobody can tell by the time it takes what others have.
        self._ids_of = lru_cache(maxsize=1024)(lambda namespace, text, title: form.document(text, title))

    @cached_property
    def token_characters(self) -> int:
        """The most characters that one token stands for."""
        return max(map(len, self.engine.tokenizer.get_vocab()))

    def forget(self, namespace: str) -> None:
        """Forget the turns and texts of a namespace that has lost some."""
        self.turns.forget(namespace)
        self._ids_of.cache_clear()

    def prepare(self, asked: RagRequest, namespace: str = "", retriever: Retriever | None = None) -> PreparedRequest:
        """Find passages, build the prompt and see that it fits.

        namespace: under which the asker's own passages are cached; a retriever has its own.
        Raises BadInput, ContextTooLong, NothingFound.
        """
        self._check_lengths(asked)
        setting = Setting(
            namespace if retriever is None else retriever.namespace, asked.policy, asked.passages, asked.order
        )
        before: Turn | None = None
        if retriever is None and not asked.passages:
            turn, n_dropped = self._chat(setting, asked), 0
        else:
            turn, n_dropped, before = self._over_passages(setting, asked, retriever)
        sampling = self.fit(turn.prompt, asked.policy, asked.sampling, asked.max_tokens)
        n_new = len(turn.sources) - (len(before.sources) if before is not None else 0)
        return PreparedRequest(
            turn.prompt, sampling, asked.policy, setting.namespace, turn.sources, n_dropped, n_new, setting,
            asked.messages,
        )  # fmt: skip

    def fit(self, prompt: Prompt, policy: Policy, sampling: Sampling, max_tokens: int | None) -> Sampling:
        """Return the sampling, with as many tokens as the answer may have: what is asked for, or the room that there
        is. Raises ContextTooLong where there is none, BadInput."""
        self.engine.check_prompt(prompt, policy, sampling)
        room = self.engine.context_length - prompt.n_tokens
        return replace(sampling, max_new_tokens=min(max_tokens or sampling.max_new_tokens, room))

    def remember(self, ready: PreparedRequest, generation: Generation) -> None:
        """Keep a finished answer, to go on from."""
        if ready.setting is None or generation.finish_reason == "cancelled":
            return
        ids, engine = generation.token_ids, self.engine
        if decoded(engine.tokenizer, ids) != generation.text:  # a stop string was cut off: the asker knows none
            ids = engine.format.encode(generation.text)
        messages = [*ready.messages, Message("assistant", generation.text)]
        self.turns.remember(ready.setting, messages, Turn(ready.prompt, ids, ready.sources))

    def _check_lengths(self, asked: RagRequest) -> None:
        """Check lengths before anything is tokenized: of very long texts that takes seconds."""
        context = self.engine.context_length
        if len(asked.messages) > context:
            raise ContextTooLong(f"{len(asked.messages)} messages do not fit a context of {context} tokens")
        n_characters = sum(len(message.text) for message in asked.messages)
        n_characters += sum(len(passage.title) + len(passage.text) for passage in asked.passages or ())
        if n_characters > context * self.token_characters:
            raise ContextTooLong(
                f"{n_characters:,} characters do not fit a context of {context} tokens, of at most "
                f"{self.token_characters} characters each. Ask with fewer or shorter texts"
            )

    def _chat(self, setting: Setting, asked: RagRequest) -> Turn:
        """Make the turn of a plain conversation; it goes on from the former turn where
        the last message alone is new."""
        form, messages = self.engine.format, asked.messages
        before = self.turns.find(setting, messages[:-1]) if messages[-1].role == "user" else None
        if before is not None:
            return Turn(form.chat_follow_up(before.prompt, before.answer_ids, messages[-1].text), (), ())
        return Turn(form.chat([(message.role, message.text) for message in messages]), (), ())

    def _over_passages(
        self, setting: Setting, asked: RagRequest, retriever: Retriever | None
    ) -> tuple[Turn, int, Turn | None]:
        """Return the new question with passages of its own, how many of those had no room, and the turn before it,
        remembered or built again from its texts."""
        system, pairs, question = _as_turns(asked.messages)
        n_before = max((i + 1 for i, message in enumerate(asked.messages) if message.role == "assistant"), default=0)
        before = self.turns.find(setting, asked.messages[:n_before]) if n_before else None
        if before is None:
            last = None
            for earlier, answer in pairs:
                turn, _ = self._following(setting, asked, retriever, system, before, earlier, last)
                last = earlier
                before = replace(turn, answer_ids=self.engine.format.encode(answer))
                self.engine.check_prompt(before.prompt, asked.policy)  # too long already: not searched for any further
        earlier_question = pairs[-1][0] if pairs else None
        return *self._following(setting, asked, retriever, system, before, question, earlier_question), before

    def _following(
        self,
        setting: Setting,
        asked: RagRequest,
        retriever: Retriever | None,
        system: str | None,
        before: Turn | None,
        question: str,
        earlier_question: str | None,
    ) -> tuple[Turn, int]:
        """Return the turn after ``before``, and how many of its passages had no room."""
        engine, form = self.engine, self.engine.format
        kept_for_answer = asked.kept_for_answer(engine.context_length)
        room = engine.context_length - kept_for_answer
        asking = form.prompt(question, (), system)
        n_asking = len(asking.parts[-1].ids)
        if n_asking > room:  # before it is searched for: of a very long one that takes seconds
            raise ContextTooLong(
                f"the question takes {n_asking} tokens, and of the context of {engine.model_name}, "
                f"{engine.context_length} tokens, {kept_for_answer} are kept for the answer. Ask a shorter "
                "question, or for a shorter answer"
            )
        if retriever is None:  # what an asker gives itself is taken as it is, and stays from turn to turn
            if before is not None:
                return Turn(form.follow_up(before.prompt, before.answer_ids, question), (), before.sources), 0
            given = asked.passages or ()
            ids = [self._document_ids(setting.namespace, passage) for passage in given]
            return Turn(asking.with_documents(ids), (), given), 0
        found = retrieve_following(retriever, question, earlier_question, asked.top_k)
        if not found and before is None:
            raise NothingFound(NOTHING_RELEVANT)
        told = set(before.prompt.documents) if before is not None else set()
        new: dict[Ids, Passage] = {}
        again: dict[Ids, float | None] = {}  # similarities to this question
        for passage in found:
            if (ids_of_one := self._document_ids(setting.namespace, passage)) not in told:
                new.setdefault(ids_of_one, passage)
            else:
                again.setdefault(ids_of_one, passage.similarity)
        # What has no room is what is least near, so that they are put in order only then.
        if before is None:
            _, n_dropped = fit_first_turn(engine, asking.with_documents(new), kept_for_answer)
        else:
            _, n_dropped = next_turn(form, before.prompt, before.answer_ids, question, list(new), room)
        kept = arrange(list(new.items())[: len(new) - n_dropped], asked.order, lambda pair: pair[1].place)
        documents, sources = [ids for ids, _ in kept], tuple(passage for _, passage in kept)
        if before is None:
            return Turn(asking.with_documents(documents), (), sources), n_dropped
        prompt = form.follow_up(before.prompt, before.answer_ids, question, documents)
        earlier = (
            replace(source, similarity=again.get(ids))
            for ids, source in zip(before.prompt.documents, before.sources, strict=True)
        )
        return Turn(prompt, (), (*earlier, *sources)), n_dropped

    def _document_ids(self, namespace: str, passage: Passage) -> Ids:
        """Tokenize a passage's segment; those of chunks are kept, as the same ones are found again and again."""
        title = " ".join(passage.title.split())
        if len(passage.text) > KEPT_LENGTH:
            return self.engine.format.document(passage.text, title)
        return self._ids_of(namespace, passage.text, title)


def _as_turns(messages: Sequence[Message]) -> tuple[str | None, list[tuple[str, str]], str]:
    """Split messages into the system text, earlier questions with their answers, and the question. Wherever the system
    speaks it is one text. Messages of one side in a row are one; tools are on the assistant's.

    Raises BadInput where they are not questions and answers in turn, with a question last.
    """
    system = [message.text for message in messages if message.role == "system"]
    merged: list[Message] = []
    for message in messages:
        role = "assistant" if message.role == "tool" else message.role
        if merged and merged[-1].role == role:
            merged[-1] = Message(role, f"{merged[-1].text}\n\n{message.text}")
        elif role != "system":
            merged.append(Message(role, message.text))
    if [message.role for message in merged] != ["user", "assistant"] * (len(merged) // 2) + ["user"]:
        raise BadInput(
            "over documents the messages have to be the user's and the assistant's in turn, the user's last, beside "
            "what the system says"
        )
    texts = [message.text for message in merged]
    return "\n\n".join(system) if system else None, list(zip(texts[:-1:2], texts[1::2], strict=True)), texts[-1]
