"""POST /v1/completions: text to go on from, as it is."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.chat import rag_chat, response_body
from hypic_apps.server.chat.event_stream import EventStream, finished
from hypic_apps.server.chat.logprobs import in_text
from hypic_apps.server.observability.logs import Arrived
from hypic_apps.server.routes.json_bodies import AnswerRoute
from hypic_apps.server.routes.models import check_model
from hypic_apps.server.schemas.requests import CompletionRequest, policy_of, sampling_of
from hypic_apps.server.schemas.responses import CompletionAnswer, ok
from hypic_rag.collections.tenant import Tenant
from hypic_rag.prompt import Prompt
from hypic_rag.rag import PreparedRequest

router = APIRouter(route_class=AnswerRoute)


@router.post("/v1/completions", response_model=None, responses=ok(CompletionAnswer))
async def complete(
    body: CompletionRequest,
    request: Request,
    found: Serving,
    who: Asking,
    arrived: Arrived,
) -> Response:
    """Write what follows the prompt: no chat format, no documents, all of it live."""
    check_model(found, body.model)
    answer = await rag_chat.begin(found, who, arrived, partial(_prepare, found, who, body), body.n or 1)
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": found.model_name,
    }
    if body.stream:
        return EventStream(_chunks(answer, head, body.include_usage), answer.close)
    choices = []
    for index, generation in enumerate(await finished(request, answer)):
        told = None if body.logprobs is None else in_text(found.token_texts, generation.logprobs)
        choices.append(_choice(index, generation.text, response_body.finish_reason(generation), told))
    about = {"usage": response_body.usage(answer), "hypic": response_body.hypic(answer)}
    return JSONResponse({**head, "choices": choices, **about})


async def _chunks(
    answer: rag_chat.StreamedAnswer, head: dict[str, Any], include_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    none_yet = {"usage": None} if include_usage else {}
    texts, n_characters = answer.service.token_texts, [0] * answer.n
    async for event in answer.events():
        told = None
        if event.logprobs is not None:
            told = in_text(texts, [event.logprobs], n_characters[event.index])
            n_characters[event.index] += len(told["tokens"][0])
        if event.text or told:
            yield {**head, "choices": [_choice(event.index, event.text, None, told)], **none_yet}
        if event.generation:
            last = _choice(event.index, "", response_body.finish_reason(event.generation))
            about = {"hypic": response_body.hypic(answer)} if answer.is_whole else {}
            yield {**head, "choices": [last], **about, **none_yet}
    if include_usage:
        yield {**head, "choices": [], "usage": response_body.usage(answer)}


def _choice(index: int, text: str, reason: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _prepare(found: Service, who: Tenant, body: CompletionRequest) -> PreparedRequest:
    given = body.prompt
    ids: Sequence[int] = found.engine.format.encode(given) if isinstance(given, str) else given
    prompt, policy = Prompt.build((), (), ids), policy_of(body, found.engine.policy)
    sampling = found.rag.fit(prompt, policy, sampling_of(body, found.settings), body.max_tokens)
    return PreparedRequest(prompt, sampling, policy, who.namespace())
