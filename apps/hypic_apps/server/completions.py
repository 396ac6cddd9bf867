"""POST /v1/completions: text to go on from, as it is."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hypic_apps.server import answering, told
from hypic_apps.server.answers import CompletionAnswer, ok
from hypic_apps.server.bodies import AnswerRoute
from hypic_apps.server.chat import policy_of, sampling_of
from hypic_apps.server.logs import Arrived
from hypic_apps.server.models import check_model
from hypic_apps.server.schemas import CompletionRequest
from hypic_apps.server.service import Service, Serving
from hypic_apps.server.streaming import EventStream, finished
from hypic_apps.server.tenants import Asking, Tenant
from hypic_rag.prompt import Prompt
from hypic_rag.rag import Ready

router = APIRouter(route_class=AnswerRoute)


@router.post("/v1/completions", response_model=None, responses=ok(CompletionAnswer))
async def complete(
    body: CompletionRequest,
    request: Request,
    found: Serving,
    who: Asking,
    arrived: Arrived,
) -> Response:
    """What follows the prompt: no chat format, no documents, all of it live."""
    check_model(found, body.model)
    answer = await answering.begin(found, who, arrived, partial(_prepare, found, who, body))
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": found.engine.model_name,
    }
    if body.stream:
        return EventStream(_chunks(answer, head, body.include_usage), answer.close)
    text = await finished(request, answer)
    choices = [_choice(text, answer.generation.finish_reason)]
    return JSONResponse({**head, "choices": choices, "usage": told.usage(answer), "hypic": told.hypic(answer)})


async def _chunks(answer: answering.Answer, head: dict[str, Any], include_usage: bool) -> AsyncIterator[dict[str, Any]]:
    none_yet = {"usage": None} if include_usage else {}
    async for text in answer.texts():
        yield {**head, "choices": [_choice(text)], **none_yet}
    last = _choice("", answer.generation.finish_reason)
    yield {**head, "choices": [last], "hypic": told.hypic(answer), **none_yet}
    if include_usage:
        yield {**head, "choices": [], "usage": told.usage(answer)}


def _choice(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _prepare(found: Service, who: Tenant, body: CompletionRequest) -> Ready:
    form, given = found.engine.format, body.prompt
    if isinstance(given, str):
        ids: Sequence[int] = form.encode(given)
    else:  # ids, or a list of one text
        ids = [token for one in given for token in (form.encode(one) if isinstance(one, str) else (one,))]
    prompt, policy = Prompt.build((), (), ids), policy_of(body, found.engine.policy)
    sampling = found.rag.fit(prompt, policy, sampling_of(body, found.settings), body.max_tokens)
    return Ready(prompt, sampling, policy, who.namespace())
