"""POST /v1/responses: a chat in the words of OpenAI's newer API, for what text needs of it."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.chat import response_body
from hypic_apps.server.chat.event_stream import EventStream, finished
from hypic_apps.server.chat.logprobs import in_chat
from hypic_apps.server.observability.logs import Arrived
from hypic_apps.server.routes.chat import BegunChat, begin_chat
from hypic_apps.server.routes.json_bodies import AnswerRoute
from hypic_apps.server.schemas.response_requests import ResponsesRequest
from hypic_apps.server.schemas.responses import ResponseAnswer, ok
from hypic_rag.engine import Generation
from hypic_rag.engine.outputs import TokenLogprobs

router = APIRouter(route_class=AnswerRoute)


@router.post("/v1/responses", response_model=None, responses=ok(ResponseAnswer))
async def respond(body: ResponsesRequest, request: Request, found: Serving, who: Asking, arrived: Arrived) -> Response:
    """Answer the input; over documents, where some are given or a collection is named."""
    try:
        asked = body.as_chat()
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    begun = await begin_chat(found, who, arrived, asked, request)
    told = _Told(body, begun)
    if body.stream:
        return EventStream(told.events(), begun.answer.close, begun.warning, named=True)
    [generation] = await finished(request, begun.answer)
    return JSONResponse(told.response(generation), headers=begun.warning)


class _Told:
    """One response, as it is told: whole, or in events."""

    def __init__(self, body: ResponsesRequest, begun: BegunChat):
        self.body, self.begun, self.answer = body, begun, begun.answer
        self.id, self.message_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self.created_at = int(time.time())
        self._n_events = 0

    def response(self, generation: Generation | None = None) -> dict[str, Any]:
        """Return the object; without a generation as it is before anything is drawn."""
        body, answer = self.body, self.answer
        form = {name: value for name, value in body.text_format.model_dump(by_alias=True).items() if value}
        head = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": self._status(generation),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.begun.model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": answer.ready.sampling.temperature,
            "text": {"format": form},
            "tool_choice": "auto",
            "tools": [],
            "top_p": answer.ready.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "documents": response_body.documents(answer.ready),
        }
        if generation is None:
            return head
        if head["status"] == "incomplete":
            head["incomplete_details"] = {"reason": "max_output_tokens"}
        head["output"] = [self._message(generation)]
        n_prompt, n_answer = generation.report.prompt_tokens, len(generation.token_ids)
        head["usage"] = {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": generation.report.cached_tokens},
            "output_tokens": n_answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + n_answer,
        }
        return head | response_body.about(answer)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of the answer, each with its number."""
        at: dict[str, Any] = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        yield self._event("response.created", response=self.response())
        yield self._event("response.in_progress", response=self.response())
        item = {"id": self.message_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **at, part=self._part("", ()))
        async for event in self.answer.events():
            if event.text or event.logprobs:
                told = self._logprobs([event.logprobs] if event.logprobs else [])
                yield self._event("response.output_text.delta", **at, delta=event.text, logprobs=told)
        generation = self.answer.generation
        part = self._whole_part(generation)
        yield self._event("response.output_text.done", **at, text=generation.text, logprobs=part["logprobs"])
        yield self._event("response.content_part.done", **at, part=part)
        yield self._event("response.output_item.done", output_index=0, item=self._message(generation))
        yield self._event(f"response.{self._status(generation)}", response=self.response(generation))

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def _status(self, generation: Generation | None) -> str:
        if generation is None:
            return "in_progress"
        return "incomplete" if response_body.finish_reason(generation) == "length" else "completed"

    def _message(self, generation: Generation) -> dict[str, Any]:
        part = self._whole_part(generation)
        status = self._status(generation)
        return {"id": self.message_id, "type": "message", "status": status, "role": "assistant", "content": [part]}

    def _whole_part(self, generation: Generation) -> dict[str, Any]:
        cited = response_body.annotations(self.answer, generation, self.begun.passages_url)
        flat = [{"type": one["type"], **one["url_citation"]} for one in cited]
        return {**self._part(generation.text, generation.logprobs), "annotations": flat}

    def _part(self, text: str, logprobs: tuple[TokenLogprobs, ...]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs(logprobs)}

    def _logprobs(self, told: "list[TokenLogprobs] | tuple[TokenLogprobs, ...]") -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = in_chat(self.answer.service.token_texts, told)["content"]
        return content
