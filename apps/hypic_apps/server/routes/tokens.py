"""POST /tokenize and /detokenize, as vLLM has them: which tokens a completion's prompt or a conversation has."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator

from hypic_apps.server.app_state import Serving
from hypic_apps.server.errors import ApiError
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.routes.models import check_model
from hypic_apps.server.schemas.known_fields import refuse_unknown
from hypic_apps.server.schemas.messages import ChatMessage, conversation
from hypic_apps.server.schemas.requests import MOST_MESSAGES
from hypic_apps.server.schemas.responses import ok
from hypic_apps.server.schemas.sampling_fields import FAST

router = APIRouter(route_class=JsonRoute)


class TokenizeRequest(BaseModel):
    """A prompt, or messages. add_special_tokens: none are added either way, as none are to a prompt."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], FAST, Field(min_length=1, max_length=MOST_MESSAGES)] | None = None
    add_special_tokens: bool = False
    return_token_strs: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_unknown(given, cls.model_fields)
        return given


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FAST]


class DetokenizeAnswer(BaseModel):
    prompt: str


@router.post("/tokenize", responses=ok(TokenizeAnswer))
def tokenize(body: TokenizeRequest, found: Serving) -> dict[str, Any]:
    check_model(found, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give a prompt or messages, one of the two", param="prompt")
    form = found.engine.format
    if body.prompt is not None:
        ids = form.encode(body.prompt)
    else:
        ids = form.chat([(one.role, one.text) for one in conversation(body.messages or ())]).token_ids
    texts = list(map(str, found.engine.tokenizer.convert_ids_to_tokens(list(ids)))) if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": found.engine.context_length, "tokens": list(ids), "token_strs": texts}


@router.post("/detokenize", responses=ok(DetokenizeAnswer))
def detokenize(body: DetokenizeRequest, found: Serving) -> dict[str, Any]:
    check_model(found, body.model)
    tokenizer = found.engine.tokenizer
    if any(one >= len(tokenizer) for one in body.tokens):
        raise ApiError(
            400, f"the model has {len(tokenizer)} tokens, with ids from 0 on: leave out others", param="tokens"
        )
    return {"prompt": tokenizer.decode(body.tokens)}
