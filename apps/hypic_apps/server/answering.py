"""From messages to a prompt over documents, and from the prompt to an answer's events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from hypic_apps.conversation import follow_up
from hypic_apps.server.errors import ApiError, TooSlow
from hypic_apps.server.loop import Stream
from hypic_apps.server.turns import Message, Setting, Source, Turn
from hypic_rag.engine import Generation, Policy, Sampling, SegmentEngine
from hypic_rag.engine.generate import decoded
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.prompt import Prompt, fit_documents

if TYPE_CHECKING:
    from hypic_apps.server.service import Service
    from hypic_apps.server.tenants import Tenant


class Retriever(Protocol):
    """One collection's. namespace: of its segments."""

    @property
    def namespace(self) -> str: ...

    def retrieve(self, question: str, top_k: int) -> Sequence[Source]:
        """The chunks nearest to the question, the nearest first; none where the collection is empty. Blocks."""
        ...


@dataclass(frozen=True)
class Asked:
    """What a request wants. max_tokens: None for the server's setting, lowered to the room there is.

    documents: that came with it; None: none, and no collection either makes it a plain conversation.
    """

    messages: tuple[Message, ...]
    policy: Policy
    sampling: Sampling
    max_tokens: int | None = None
    documents: tuple[Source, ...] | None = None
    collection: str | None = None
    top_k: int = 5


@dataclass(frozen=True)
class Ready:
    """A prompt that fits. sources: of its documents. setting, messages: to be remembered by; None: not at all."""

    prompt: Prompt
    sampling: Sampling
    policy: Policy
    namespace: str
    sources: tuple[Source, ...] = ()
    n_dropped: int = 0
    setting: Setting | None = None
    messages: tuple[Message, ...] = ()


def prepare(service: "Service", tenant: "Tenant", asked: Asked) -> Ready:
    """Finds documents, builds the prompt and sees that it fits. Blocks.

    Raises BadInput, ContextTooLong, and ApiError for a collection that is not there or has nothing.
    """
    engine = service.engine
    if asked.documents and asked.collection is not None:
        raise ApiError(400, "give documents or a collection, not both", param="documents")
    if len(asked.messages) > engine.context_length:
        raise ContextTooLong(f"{len(asked.messages)} messages do not fit a context of {engine.context_length} tokens")
    n_characters = sum(len(message.text) for message in asked.messages)
    n_characters += sum(len(source.title) + len(source.text) for source in asked.documents or ())
    if n_characters > engine.context_length * service.token_characters:  # tokenizing them would take seconds
        raise ContextTooLong(
            f"{n_characters:,} characters do not fit a context of {engine.context_length} tokens, of at most "
            f"{service.token_characters} characters each. Ask with fewer or shorter texts"
        )
    retriever: Retriever | None = None
    if asked.collection is not None:
        retriever = service.collections.retriever(tenant, asked.collection)
    setting = Setting(
        retriever.namespace if retriever is not None else tenant.namespace(), asked.policy, asked.documents
    )
    if retriever is None and not asked.documents:
        turn, n_dropped = _chat(service, setting, asked), 0
    else:
        turn, n_dropped = _over_documents(service, setting, asked, retriever)
    sampling = fit(service, turn.prompt, asked.policy, asked.sampling, asked.max_tokens)
    about = (turn.sources, n_dropped, setting, asked.messages)
    return Ready(turn.prompt, sampling, asked.policy, setting.namespace, *about)


def fit(service: "Service", prompt: Prompt, policy: Policy, sampling: Sampling, max_tokens: int | None) -> Sampling:
    """With the tokens that an answer to the prompt may have. Raises ContextTooLong, BadInput."""
    engine = service.engine
    engine.check_prompt(prompt, policy)
    room = engine.context_length - prompt.n_tokens
    if max_tokens is not None and max_tokens > room:
        raise ContextTooLong(
            f"the prompt takes {prompt.n_tokens} tokens and the answer may take {max_tokens}, but {engine.model_name} "
            f"has a context of {engine.context_length}. Ask for at most {room} tokens, or with fewer or shorter texts"
        )
    return replace(sampling, max_new_tokens=max_tokens or min(service.settings.max_new_tokens, room))


@dataclass
class Answer:
    """An answer under way. ``texts`` gives it as it comes; then ``generation`` is there. ``close`` stops it."""

    service: "Service"
    ready: Ready
    stream: Stream
    total_ms: float = field(default=0.0, init=False)
    _generation: Generation | None = field(default=None, init=False)

    async def texts(self) -> AsyncIterator[str]:
        """Raises what Stream does."""
        async for event in self.stream:
            if event.generation:
                self._generation, self.total_ms = event.generation, self.stream.total_ms
            if event.text:
                yield event.text
            if event.generation:
                self._remember(event.generation)

    @property
    def generation(self) -> Generation:
        assert self._generation is not None
        return self._generation

    def close(self) -> None:
        self.stream.close()

    def _remember(self, generation: Generation) -> None:
        ready = self.ready
        if ready.setting is None or generation.finish_reason == "cancelled":
            return
        ids = generation.token_ids
        engine = self.service.engine
        if decoded(engine.tokenizer, ids) != generation.text:  # a stop string was cut off: the client knows none
            ids = engine.format.encode(generation.text)
        messages = [*ready.messages, Message("assistant", generation.text)]
        self.service.turns.remember(ready.setting, messages, Turn(ready.prompt, ids, ready.sources))


async def begin(service: "Service", tenant: "Tenant", arrived: float, make: Callable[[], Ready]) -> Answer:
    """Makes the prompt in a thread, which queues it too: on its way back here it would wait once more for its turn.

    arrived: of time.monotonic. Raises what ``make`` and ``EngineLoop.stream`` do, and TooSlow.
    """
    seconds, listener = service.settings.request_seconds, asyncio.get_running_loop()
    with service.loop.place(tenant.namespace(), arrived) as watch:

        def make_and_queue() -> Answer:
            ready = make()
            asked = (ready.prompt, ready.sampling, ready.policy, ready.namespace)
            return Answer(service, ready, service.loop.stream(*asked, seconds, tenant.id, watch, listener))

        try:
            async with asyncio.timeout_at(arrived + seconds) as limit:
                return await service.preparing.run(make_and_queue, Answer.close)
        except TimeoutError:
            if limit.expired():
                raise TooSlow() from None
            raise


def _chat(service: "Service", setting: Setting, asked: Asked) -> Turn:
    """A plain conversation; it goes on from the former turn where the last message alone is new."""
    form, messages = service.engine.format, asked.messages
    before = service.turns.find(setting, messages[:-1]) if messages[-1].role == "user" else None
    if before is not None:
        return Turn(form.chat_follow_up(before.prompt, before.answer_ids, messages[-1].text), (), ())
    return Turn(form.chat([(message.role, message.text) for message in messages]), (), ())


def _over_documents(
    service: "Service", setting: Setting, asked: Asked, retriever: Retriever | None
) -> tuple[Turn, int]:
    """The turns so far, remembered or built again from their texts, and the new question with documents of its own;
    also how many of those had no room."""
    engine, form = service.engine, service.engine.format
    system, pairs, question = _as_turns(asked.messages)
    room = engine.context_length - (asked.max_tokens or service.settings.max_new_tokens)

    def following(before: Turn | None, question: str) -> tuple[Turn, int]:
        asking = form.prompt(question, (), system)
        n_asking = len(asking.parts[-1].ids)
        if n_asking > room:  # before it is searched for: of a very long one that takes seconds
            raise ContextTooLong(
                f"the question takes {n_asking} tokens, and {engine.model_name} has a context of "
                f"{engine.context_length} for it, the documents and the answer. Ask a shorter question"
            )
        found = _found(asked, retriever, question, before)
        ids = [service.document_ids(setting.namespace, source.title, source.text) for source in found]
        told = set(before.prompt.documents) if before is not None else set()
        if retriever is not None:  # what a request gives itself is taken as it is
            new = {i: source for i, source in zip(ids, found, strict=True) if i not in told}
            ids, found = list(new), list(new.values())
        if before is None:
            prompt, n_dropped = asking.with_documents(ids), 0
            if retriever is not None:
                prompt, n_dropped = _fit_first(engine, prompt, room)
            return Turn(prompt, (), tuple(found[: len(found) - n_dropped])), n_dropped
        prompt, n_dropped = follow_up(form, before.prompt, before.answer_ids, question, ids, room)
        return Turn(prompt, (), (*before.sources, *found[: len(found) - n_dropped])), n_dropped

    n_before = max((i + 1 for i, message in enumerate(asked.messages) if message.role == "assistant"), default=0)
    before = service.turns.find(setting, asked.messages[:n_before]) if n_before else None
    if before is None:
        for earlier, answer in pairs:
            before = replace(following(before, earlier)[0], answer_ids=form.encode(answer))
            engine.check_prompt(before.prompt, asked.policy)  # what is too long already is not searched for any further
    return following(before, question)


def _found(asked: Asked, retriever: Retriever | None, question: str, before: Turn | None) -> Sequence[Source]:
    if retriever is None:
        return (asked.documents or ()) if before is None else ()
    if not question.strip():
        raise BadInput("the question is empty: the last message has to say what to look for in the collection")
    found = retriever.retrieve(question, asked.top_k)
    if not found and before is None:
        raise ApiError(
            400, f"the collection {asked.collection} has no documents yet: upload files to it, or wait until they are "
            "ready", code="collection_empty", param="collection",
        )  # fmt: skip
    return found


def _fit_first(engine: SegmentEngine, whole: Prompt, room: int) -> tuple[Prompt, int]:
    prompt, n_dropped = fit_documents(whole, room)
    if prompt.n_tokens > room or not prompt.documents:
        raise ContextTooLong(
            f"the question and the first document found do not fit: {engine.model_name} has a context of "
            f"{engine.context_length}, {engine.context_length - room} of them kept for the answer, and the prompt with "
            f"all documents takes {whole.n_tokens}. Ask for a shorter answer, or a shorter question"
        )
    return prompt, n_dropped


def _as_turns(messages: Sequence[Message]) -> tuple[str | None, list[tuple[str, str]], str]:
    """The system text, earlier questions with their answers, and the question. Messages of one side in a row are one.

    Raises BadInput where they are not questions and answers in turn, with a question last.
    """
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            merged[-1] = Message(message.role, f"{merged[-1].text}\n\n{message.text}")
        else:
            merged.append(message)
    system = merged.pop(0).text if merged[0].role == "system" else None
    if [message.role for message in merged] != ["user", "assistant"] * (len(merged) // 2) + ["user"]:
        raise BadInput(
            "over documents the messages have to be: a system message or none, then the user's and the assistant's in "
            "turn, the user's last"
        )
    texts = [message.text for message in merged]
    return system, list(zip(texts[:-1:2], texts[1::2], strict=True)), texts[-1]
