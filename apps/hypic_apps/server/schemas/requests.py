"""What a request's body may hold: OpenAI's fields, and ours beside them. What is not named here is left alone, as
clients send all sorts of things, but not what was meant to be one of them."""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from hypic_apps.server.errors import ApiError
from hypic_rag.config import Settings
from hypic_rag.engine.policy import Compose, Mode, Policy, Sampling
from hypic_rag.rag.answer_length import USUAL, answer_tokens
from hypic_rag.rag.order import Order

FAST = Field(fail_fast=True)
"""Of a list: what is wrong with the first of a million values is all that anybody is told."""
MOST_MESSAGES, MOST_DOCUMENTS = 10_000, 2_000
OVER_DOCUMENTS = {"messages", "documents", "collection"}
ALIKE = 0.85  # of 1; "document" is, to "documents", and "top_a", which other servers know, is not to "top_k"
MOST_UNKNOWN, LONGEST_UNKNOWN = 32, 40  # how many unknown fields are looked at, of how many characters
MOST_TEXT = 100_000  # characters to be embedded at once; some seconds on a processor

# Fields that would change the answer, and the values that ask for nothing: anything else is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "dimensions": (None,),
}


def _joined(content: object) -> object:
    """Join a message's text: a string, or the texts of its parts, a line each."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if kind != "text" or not isinstance(text, str):
            told = f", not of type {kind[:60]!r}" if isinstance(kind, str) else ""
            raise ValueError(f"a part of a message can only be {{'type': 'text', 'text': '...'}}{told}")
        texts.append(text)
    return "\n".join(texts)


def _titled(document: object) -> object:
    if isinstance(document, str):
        return {"text": document}
    refuse_misspelt(document, Document.model_fields)
    return document


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Text = Annotated[
    str,
    BeforeValidator(_joined),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}),
]
Words = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    FAST,
    Field(max_length=16),
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 16}]}),
]


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class Document(BaseModel):
    """A text to answer from, read as one segment."""

    text: str = Field(min_length=1)
    title: str = Field("", max_length=1000)


Given = Annotated[
    Document,
    BeforeValidator(_titled),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, Document.model_json_schema()]}),
]


class StreamOptions(BaseModel):
    include_usage: bool = False


class RequestBody(BaseModel):
    """What every request of an answer may have; None takes the server's setting."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: Words | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    mode: Mode | None = None
    seam_tokens: int | None = Field(None, ge=0)
    compose: Compose | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_unsupported(given)
        refuse_elsewhere(given, cls.model_fields)
        refuse_misspelt(given, cls.model_fields)
        return given

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(RequestBody):
    messages: Annotated[list[ChatMessage], FAST, Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: int | None = Field(None, ge=1)
    documents: Annotated[list[Given], FAST, Field(max_length=MOST_DOCUMENTS)] | None = None
    collection: str | None = None
    top_k: int | None = Field(None, ge=1, le=1000)
    order: Order | None = None


class CompletionRequest(RequestBody):
    """A text to go on from; what asks over documents is the chat's."""

    prompt: str | Annotated[list[int], FAST] | Annotated[list[str], FAST, Field(min_length=1, max_length=1)]


class EmbeddingRequest(BaseModel):
    model: str | None = None
    input: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]],
        FAST,
        Field(min_length=1, max_length=2048),
        BeforeValidator(_listed),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ]
    encoding_format: Literal["float", "base64"] = "float"

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_unsupported(given)
        return given


def policy_of(body: RequestBody, policy: Policy) -> Policy:
    """Return the server's policy, with what the request gives. Raises BadInput."""
    given = {"mode": body.mode, "seam_tokens": body.seam_tokens, "compose": body.compose}
    given = {name: value for name, value in given.items() if value is not None}
    return replace(policy, **given) if given else policy  # type: ignore[arg-type]


def sampling_of(body: RequestBody, settings: Settings, question: str | None = None) -> Sampling:
    """Return the server's sampling, with what the request gives but ``max_tokens``; ``max_new_tokens`` is lowered to
    the room that the prompt leaves. question: where documents are asked. Raises BadInput."""
    return Sampling(
        settings.max_new_tokens or (USUAL if question is None else answer_tokens(question)),
        settings.temperature if body.temperature is None else body.temperature,
        settings.top_p if body.top_p is None else body.top_p,
        settings.seed if body.seed is None else body.seed,
        tuple(body.stop or ()),
    )


def refuse_unsupported(given: object) -> None:
    """Raise ApiError for a field that this server would have to pass over though it changes the answer."""
    for name, neutral in NEUTRAL.items():
        if isinstance(given, dict) and given.get(name) not in neutral:
            known = f", or give {neutral[-1]!r}" if len(neutral) > 1 else ""
            text = f"{name} is not supported here: leave it out{known}"
            raise ApiError(400, text, code="unsupported_parameter", param=name)


def refuse_elsewhere(given: object, fields: Iterable[str]) -> None:
    """Raise ApiError for what asks over documents, where that is none of these fields."""
    for name in OVER_DOCUMENTS.difference(fields):
        if isinstance(given, dict) and given.get(name) is not None:
            text = f"{name} is for /v1/chat/completions: ask there, or leave it out"
            raise ApiError(400, text, code="unsupported_parameter", param=name)


def refuse_misspelt(given: object, fields: Iterable[str]) -> None:
    """Raise ApiError for a field that nobody knows and that is much like one of these."""
    known = [*fields, *NEUTRAL]
    names = given if isinstance(given, dict) else ()
    for name in islice((name for name in names if name not in known), MOST_UNKNOWN):
        if len(name) <= LONGEST_UNKNOWN and (found := get_close_matches(name, known, n=1, cutoff=ALIKE)):
            text = f"{name} is not a field of this request: did you mean {found[0]}?"
            raise ApiError(400, text, code="unknown_parameter", param=name)
