"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.chat import rag_chat, response_body
from hypic_apps.server.chat.event_stream import EventStream, finished
from hypic_apps.server.chat.logprobs import in_chat
from hypic_apps.server.errors import ApiError
from hypic_apps.server.observability.logs import Arrived
from hypic_apps.server.routes.json_bodies import AnswerRoute
from hypic_apps.server.routes.models import BETWEEN, NoModel, collection_of
from hypic_apps.server.schemas.messages import conversation
from hypic_apps.server.schemas.requests import ChatRequest, policy_of, sampling_of, wanted_documents
from hypic_apps.server.schemas.responses import ChatAnswer, ok
from hypic_rag.collections.tenant import Tenant
from hypic_rag.engine.outputs import TokenLogprobs
from hypic_rag.rag import Passage, PreparedRequest, RagRequest

router = APIRouter(route_class=AnswerRoute)


@router.post("/v1/chat/completions", response_model=None, responses=ok(ChatAnswer))
async def chat(
    body: ChatRequest,
    request: Request,
    found: Serving,
    who: Asking,
    arrived: Arrived,
) -> Response:
    """Answer the last message; over documents, where some are given or a collection is named, also as the model."""
    begun = await begin_chat(found, who, arrived, body, request)
    answer, warning, url = begun.answer, begun.warning, begun.passages_url
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": begun.model}
    if body.stream:
        return EventStream(_chunks(answer, head, body.include_usage, url), answer.close, warning)
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": generation.text,
                "refusal": None,
                "annotations": response_body.annotations(answer, generation, url),
            },
            "logprobs": in_chat(found.token_texts, generation.logprobs) if body.logprobs else None,
            "finish_reason": response_body.finish_reason(generation),
        }
        for index, generation in enumerate(await finished(request, answer))
    ]
    head["object"] = "chat.completion"
    about = {"usage": response_body.usage(answer), **response_body.about(answer)}
    return JSONResponse({**head, "choices": choices, **about}, headers=warning)


@dataclass(frozen=True)
class BegunChat:
    """model: its name, as the answer tells it. passages_url: of a file of the collection, with ``{}`` for its id.
    warning: headers."""

    answer: rag_chat.StreamedAnswer
    model: str
    passages_url: str | None
    warning: dict[str, str]


async def begin_chat(found: Service, who: Tenant, arrived: float, body: ChatRequest, request: Request) -> BegunChat:
    """Begin the answer to a chat. Raises what ``rag_chat.begin`` does, ApiError for a model that is not served."""
    collection = _asked_collection(found, body)
    passages = body.documents and tuple(Passage(one.title, one.text) for one in body.documents)
    question = body.messages[-1].text if body.documents or collection is not None else None
    n_documents, warning = wanted_documents(body)
    asked = RagRequest(
        conversation(body.messages),
        policy_of(body, found.engine.policy),
        sampling_of(body, found.settings, question),
        body.max_completion_tokens or body.max_tokens,
        passages or None,
        n_documents or found.settings.top_k,
        body.order or found.order,
    )
    make = partial(_prepare, found, who, asked, collection, body)
    answer = await rag_chat.begin(found, who, arrived, make, body.n or 1)
    named = found.model_name if body.collection == collection else f"{found.model_name}{BETWEEN}{collection}"
    url = collection and f"{request.base_url}v1/collections/{collection}/files/{{}}/passages"
    return BegunChat(answer, named, url, warning)


def _asked_collection(found: Service, body: ChatRequest) -> str | None:
    """Return the collection that is asked, by its field or as the model. Raises ApiError for two of them."""
    as_model = collection_of(found, body.model)
    if as_model is not None and body.collection not in (None, as_model):
        text = f"the model names the collection {as_model[:100]!r}, and the field another: give one of the two"
        raise ApiError(400, text, param="collection")
    return body.collection if as_model is None else as_model


def _prepare(
    found: Service, who: Tenant, asked: RagRequest, collection: str | None, body: ChatRequest
) -> PreparedRequest:
    try:
        return rag_chat.prepare(found, who, asked, collection, body.min_similarity)
    except ApiError as error:
        if error.code == "collection_not_found" and body.collection is None:
            raise NoModel(str(body.model), found.model_name) from None
        raise


async def _chunks(
    answer: rag_chat.StreamedAnswer, head: dict[str, Any], include_usage: bool, passages_url: str | None
) -> AsyncIterator[dict[str, Any]]:
    head = {**head, "object": "chat.completion.chunk"}
    none_yet = {"usage": None} if include_usage else {}

    def chunk(
        index: int, delta: dict[str, Any], reason: str | None = None, told: TokenLogprobs | None = None
    ) -> dict[str, Any]:
        logprobs = None if told is None else in_chat(answer.service.token_texts, [told])
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice], **none_yet}

    opening = {"role": "assistant", "content": ""}
    yield {**chunk(0, opening), "documents": response_body.documents(answer.ready)}
    for index in range(1, answer.n):
        yield chunk(index, opening)
    async for event in answer.events():
        if event.text or event.logprobs:
            yield chunk(event.index, {"content": event.text}, None, event.logprobs)
        if event.generation:
            cited = response_body.annotations(answer, event.generation, passages_url)
            reason = response_body.finish_reason(event.generation)
            about = response_body.about_told(answer) if answer.is_whole else {}
            yield {**chunk(event.index, {"annotations": cited} if cited else {}, reason), **about}
    if include_usage:
        yield {**head, "choices": [], "usage": response_body.usage(answer)}
