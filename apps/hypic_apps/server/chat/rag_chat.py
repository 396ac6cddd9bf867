"""From a request to a prompt, and from the prompt to an answer's events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypic_apps.server.chat.engine_loop import Stream
from hypic_apps.server.errors import ApiError, TooSlow
from hypic_rag.engine import Generation, StreamEvent
from hypic_rag.rag import NothingFound, PreparedRequest, RagRequest
from hypic_rag.rag.unanswered import no_documents

if TYPE_CHECKING:
    from hypic_apps.server.app_state import Service
    from hypic_rag.collections.tenant import Tenant


def prepare(
    service: "Service",
    tenant: "Tenant",
    asked: RagRequest,
    collection: str | None,
    min_similarity: float | None = None,
) -> PreparedRequest:
    """Find passages, build the prompt and see that it fits. Block. min_similarity: of each that is found.

    Raises BadInput, ContextTooLong, and ApiError for a collection that is not there or has nothing.
    """
    if asked.passages and collection is not None:
        raise ApiError(400, "give documents or a collection, not both", param="documents")
    retriever = None if collection is None else service.collections.retriever(tenant, collection)
    if retriever is not None and min_similarity is not None:
        retriever = retriever.at_least(min_similarity)
    try:
        return service.rag.prepare(asked, tenant.namespace(), retriever)
    except NothingFound as nothing:
        if retriever is not None and not retriever.is_empty:
            raise ApiError(400, str(nothing), code="nothing_relevant", param="messages") from None
        raise ApiError(
            400,
            no_documents("collection", collection, "upload files to it, or wait until they are ready"),
            code="collection_empty",
            param="collection",
        ) from None


@dataclass
class StreamedAnswer:
    """An answer under way, or several to one prompt. ``events`` gives it as it comes; then ``generation``, and those
    of all answers, are there. ``close`` stops it."""

    service: "Service"
    ready: PreparedRequest
    stream: Stream
    n: int = 1
    total_ms: float = field(default=0.0, init=False)
    _done: dict[int, Generation] = field(default_factory=dict, init=False)

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield what has text or log-probabilities as it comes, and the end of each answer. Raises what Stream does."""
        async for event in self.stream:
            if event.generation:
                self._done[event.index], self.total_ms = event.generation, self.stream.total_ms
            if event.text or event.logprobs or event.generation:
                yield event
            if event.generation:
                self.service.rag.remember(self.ready, event.generation)

    @property
    def generation(self) -> Generation:
        """The first answer's."""
        return self._done[0]

    @property
    def generations(self) -> list[Generation]:
        """All answers', once they are whole."""
        return [self._done[index] for index in range(self.n)]

    @property
    def is_whole(self) -> bool:
        """Whether all answers have ended."""
        return len(self._done) == self.n

    def close(self) -> None:
        self.stream.close()


async def begin(
    service: "Service", tenant: "Tenant", arrived: float, make: Callable[[], PreparedRequest], n: int = 1
) -> StreamedAnswer:
    """Make the prompt in a thread, which queues it too: on its way back here it would wait once more for its turn.

    arrived: of time.monotonic. n: answers. Raises what ``make`` and ``EngineLoop.stream`` do, TooSlow, and ApiError for
    more answers than run at once.
    """
    if n > service.loop.max_running:
        most = service.loop.max_running
        raise ApiError(400, f"n is {n}, and this server runs at most {most} answers at once: ask for fewer", param="n")
    seconds, listener = service.settings.request_seconds, asyncio.get_running_loop()
    with service.loop.place(tenant.namespace(), arrived) as watch:

        def make_and_queue() -> StreamedAnswer:
            ready = make()
            asked = (ready.prompt, ready.sampling, ready.policy, ready.namespace)
            stream = service.loop.stream(*asked, seconds, tenant.id, watch, listener, n)
            return StreamedAnswer(service, ready, stream, n)

        try:
            async with asyncio.timeout_at(arrived + seconds) as limit:
                return await service.preparing.run(make_and_queue, StreamedAnswer.close)
        except TimeoutError:
            if limit.expired():
                raise TooSlow() from None
            raise
