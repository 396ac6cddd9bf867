"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.chat import rag_chat, response_body
from hypic_apps.server.chat.event_stream import EventStream, finished
from hypic_apps.server.chat.logprobs import in_chat
from hypic_apps.server.observability.logs import Arrived
from hypic_apps.server.routes.json_bodies import AnswerRoute
from hypic_apps.server.routes.models import check_model
from hypic_apps.server.schemas.messages import conversation
from hypic_apps.server.schemas.requests import ChatRequest, policy_of, sampling_of, wanted_documents
from hypic_apps.server.schemas.responses import ChatAnswer, ok
from hypic_rag.engine.outputs import TokenLogprobs
from hypic_rag.rag import Passage, RagRequest

router = APIRouter(route_class=AnswerRoute)


@router.post("/v1/chat/completions", response_model=None, responses=ok(ChatAnswer))
async def chat(
    body: ChatRequest,
    request: Request,
    found: Serving,
    who: Asking,
    arrived: Arrived,
) -> Response:
    """Answer the last message; over documents, where some are given or a collection is named."""
    check_model(found, body.model)
    passages = body.documents and tuple(Passage(one.title, one.text) for one in body.documents)
    question = body.messages[-1].text if body.documents or body.collection is not None else None
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
    answer = await rag_chat.begin(found, who, arrived, partial(rag_chat.prepare, found, who, asked, body.collection))
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": found.engine.model_name}
    if body.stream:
        return EventStream(_chunks(answer, head, body.include_usage), answer.close, warning)
    text = await finished(request, answer)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": in_chat(found.token_texts, answer.generation.logprobs) if body.logprobs else None,
        "finish_reason": response_body.finish_reason(answer),
    }
    head["object"] = "chat.completion"
    about = {"usage": response_body.usage(answer), **response_body.about(answer)}
    return JSONResponse({**head, "choices": [choice], **about}, headers=warning)


async def _chunks(
    answer: rag_chat.StreamedAnswer, head: dict[str, Any], include_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    head = {**head, "object": "chat.completion.chunk"}
    none_yet = {"usage": None} if include_usage else {}

    def chunk(delta: dict[str, Any], reason: str | None = None, told: TokenLogprobs | None = None) -> dict[str, Any]:
        logprobs = None if told is None else in_chat(answer.service.token_texts, [told])
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice], **none_yet}

    yield {**chunk({"role": "assistant", "content": ""}), "documents": response_body.documents(answer.ready)}
    async for event in answer.events():
        yield chunk({"content": event.text}, None, event.logprobs)
    yield {**chunk({}, response_body.finish_reason(answer)), **response_body.about(answer)}
    if include_usage:
        yield {**head, "choices": [], "usage": response_body.usage(answer)}
