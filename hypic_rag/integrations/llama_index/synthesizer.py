"""HypicSynthesizer: retrieved nodes to an answer, each node a segment of its own."""

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.prompt_helper import ChatPromptHelper, PromptHelper
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryType, TextNode
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index_instrumentation import get_dispatcher

from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.events import SegmentsAssembled
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.node_text import title_and_text
from hypic_rag.prompt import Prompt, asked_question
from hypic_rag.rag.order import Order, Place, arrange
from hypic_rag.rag.passage import chunk_place
from hypic_rag.rag.unanswered import NOTHING_RELEVANT, is_answer

dispatcher = get_dispatcher(__name__)


class HypicSynthesizer(BaseSynthesizer):
    """Answers from nodes, each as a cached segment (``title_and_text``).

    order: in which the nodes stand in the prompt, if they come nearest first; None for the order in which they come.
    A response's sources stay as they came.

    Use it as ``index.as_query_engine(llm=llm, response_synthesizer=HypicSynthesizer(llm))``; for a stream,
    give ``streaming=True`` to the synthesizer (LlamaIndex does not pass the query engine's on to one that
    is given).

    A response's ``metadata`` has LlamaIndex's {node_id: metadata} and under ``"hypic"``: ``dropped`` (node
    ids that did not fit the context; whole, from the end; they are not among ``source_nodes``),
    ``segments`` (node id, tokens, tier, reason of a miss, of each in the prompt's order), ``report``,
    ``finish_reason`` and ``answered`` (False where it says that the documents do not say). Of a stream, all but
    ``dropped`` are there when it has ended.
    """

    def __init__(
        self,
        llm: HypicLLM,
        streaming: bool = False,
        system: str | None = None,
        empty_response: str = NOTHING_RELEVANT,
        callback_manager: CallbackManager | None = None,
        order: Order | None = None,
    ):
        if not isinstance(llm, HypicLLM):
            raise BadInput(
                f"HypicSynthesizer needs a HypicLLM, but got a {type(llm).__name__}: write HypicSynthesizer(HypicLLM())"
            )
        window, n_answer = llm.metadata.context_window, llm.metadata.num_output

        def tokenizer(text: str) -> list[int]:  # given, so that LlamaIndex loads none of its own
            return list(llm.engine.format.encode(text))

        super().__init__(
            llm=llm,
            streaming=streaming,
            empty_response=empty_response,
            callback_manager=callback_manager,
            prompt_helper=PromptHelper(window, n_answer, tokenizer=tokenizer),
            chat_prompt_helper=ChatPromptHelper(window, n_answer, tokenizer=tokenizer),
        )
        self._hypic_llm = llm
        self._system = system
        self._order = order

    def __getstate__(self) -> NoReturn:
        raise BadInput(
            "a HypicSynthesizer holds a model and can be neither copied nor sent to another process: "
            "make another one there with HypicSynthesizer(llm)"
        )

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        with self._synthesis(query, nodes, additional_source_nodes) as answer:
            answer.output = self._respond(answer, response_kwargs)
        return answer.response

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        with self._synthesis(query, nodes, additional_source_nodes) as answer:
            answer.output = await self._arespond(answer, response_kwargs)
        return answer.response

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> RESPONSE_TEXT_TYPE:
        """Answer from texts without titles, each a segment; a string, or a generator where streaming."""
        return self._respond(self._answer(query_str, _untitled(text_chunks)), response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        return await self._arespond(self._answer(query_str, _untitled(text_chunks)), response_kwargs)

    def _get_prompts(self) -> PromptDictType:
        return {}  # the prompt is the model's own format, not a template

    def _update_prompts(self, prompts: PromptDictType) -> None:
        """Do nothing: there are none to update."""

    def _answer(self, query: QueryType, nodes: Sequence[NodeWithScore]) -> "_Answer":
        question = asked_question(query if isinstance(query, str) else query.query_str)
        if not nodes:
            return _Answer(question, None, (), (), ())
        documents = [title_and_text(one.node) for one in nodes]
        prompt, n_dropped = self._hypic_llm.documents_prompt(question, documents, self._system)
        n_kept = len(nodes) - n_dropped
        kept, dropped = nodes[:n_kept], nodes[n_kept:]
        if self._order is not None:  # what has no room is what is least near
            arranged = arrange(kept, self._order, _place_of)
            documents = [title_and_text(one.node) for one in arranged]
            prompt, _ = self._hypic_llm.documents_prompt(question, documents, self._system)
            return _Answer(question, prompt, arranged, kept, dropped)
        return _Answer(question, prompt, kept, kept, dropped)

    def _respond(self, answer: "_Answer", given: dict[str, Any]) -> str | Generator[str, None, None]:
        options = self._options(answer.question, given)
        llm, asked = self._hypic_llm, answer.messages
        if answer.prompt is None:
            return self._empty_response_generator() if self._streaming else self._empty_response
        if self._streaming:
            return answer.deltas(llm.stream_chat(asked, prompt=answer.prompt, **options))
        return answer.text(llm.chat(asked, prompt=answer.prompt, **options))

    async def _arespond(self, answer: "_Answer", given: dict[str, Any]) -> str | AsyncGenerator[str, None]:
        options = self._options(answer.question, given)
        llm, asked = self._hypic_llm, answer.messages
        if answer.prompt is None:
            return self._empty_response_agenerator() if self._streaming else self._empty_response
        if self._streaming:
            return answer.adeltas(await llm.astream_chat(asked, prompt=answer.prompt, **options))
        return answer.text(await llm.achat(asked, prompt=answer.prompt, **options))

    def _options(self, question: str, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("max_tokens") or given.get("max_new_tokens"):
            return given
        return {**given, "max_new_tokens": self._hypic_llm.answer_tokens(question)}

    @contextmanager
    def _synthesis(
        self, query: QueryType, nodes: Sequence[NodeWithScore], additional: Sequence[NodeWithScore] | None
    ) -> "Iterator[_Answer]":
        """Tell of an answer's begin and, once its output is there, of its end."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        answer = self._answer(query, nodes)
        payload: dict[str, Any] = {EventPayload.QUERY_STR: answer.question}
        with self._callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:
            yield answer
            answer.additional = additional or ()
            event.on_end(payload={EventPayload.RESPONSE: answer.response})
        dispatcher.event(SynthesizeEndEvent(query=query, response=answer.response))


class _Answer:
    """One answer on its way: its prompt, its nodes, and the metadata that fills up as it is generated."""

    def __init__(
        self,
        question: str,
        prompt: Prompt | None,
        nodes: Sequence[NodeWithScore],
        sources: Sequence[NodeWithScore],
        dropped: Sequence[NodeWithScore],
    ):
        """nodes: in the prompt's order; sources: the same as they came."""
        self.question = question
        self.prompt = prompt
        self.nodes = nodes
        self.sources = sources
        self.output: str | Generator[str, None, None] | AsyncGenerator[str, None] = ""
        self.additional: Sequence[NodeWithScore] = ()
        self.messages = [ChatMessage(role=MessageRole.USER, content=question)]
        self.about: dict[str, Any] = {"dropped": [one.node.node_id for one in dropped], "segments": []}
        if prompt is None:
            self.about["answered"] = False
        self.metadata: dict[str, Any] = {one.node.node_id: one.node.metadata for one in nodes}
        self.metadata["hypic"] = self.about

    @cached_property
    def response(self) -> RESPONSE_TYPE:
        """LlamaIndex's, around the output."""
        sources = [*self.sources, *self.additional]
        if isinstance(self.output, str):
            return Response(self.output, sources, self.metadata)
        if isinstance(self.output, Generator):
            return StreamingResponse(self.output, sources, self.metadata)
        return AsyncStreamingResponse(self.output, sources, self.metadata)

    def text(self, response: ChatResponse) -> str:
        self._finish(response)
        return response.message.content or ""

    def deltas(self, responses: Generator[ChatResponse, None, None]) -> Generator[str, None, None]:
        try:
            for response in responses:
                if response.raw is not None:
                    self._finish(response)
                yield response.delta or ""
        finally:
            responses.close()

    async def adeltas(self, responses: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[str, None]:
        try:
            async for response in responses:
                if response.raw is not None:
                    self._finish(response)
                yield response.delta or ""
        finally:
            await responses.aclose()

    def _finish(self, response: ChatResponse) -> None:
        raw = cast(dict[str, Any], response.raw)
        report = raw["report"]
        segments = [
            {"node_id": one.node.node_id, **use} for one, use in zip(self.nodes, report["segments"], strict=True)
        ]
        self.about.update(segments=segments, report=report, finish_reason=raw["finish_reason"])
        self.about["answered"] = is_answer(response.message.content or "")
        n_live = sum(use["tier"] == "live" for use in segments)
        dispatcher.event(
            SegmentsAssembled(
                query=self.question,
                n_segments=len(segments),
                n_hits=report["n_from_cache"],
                n_live=n_live,
                n_misses=len(segments) - report["n_from_cache"] - n_live,
                n_dropped=len(self.about["dropped"]),
                prompt_tokens=report["prompt_tokens"],
                computed_tokens=report["computed_tokens"],
                ttft_ms=report["ttft_ms"],
                segments=segments,
            )
        )


def _place_of(node: NodeWithScore) -> Place:
    return chunk_place(node.node.metadata)


def _untitled(texts: Sequence[str]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text)) for text in texts]
