"""What a request's body may hold: OpenAI's fields, and ours beside them. What is not named here is
refused: a field that is passed over may have been meant to change the answer."""

import logging
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from hypic_apps.server.errors import ApiError
from hypic_apps.server.schemas.answer_format import FormatFields
from hypic_apps.server.schemas.known_fields import refuse_elsewhere, refuse_misspelt, refuse_unknown
from hypic_apps.server.schemas.messages import ChatMessage
from hypic_apps.server.schemas.sampling_fields import FAST, ChatTop, SamplingFields, TextTop
from hypic_rag.config import Settings
from hypic_rag.engine.policy import Compose, Mode, Policy, Sampling
from hypic_rag.rag.answer_length import USUAL, answer_tokens
from hypic_rag.rag.order import Order

log = logging.getLogger(__name__)

MOST_MESSAGES, MOST_DOCUMENTS = 10_000, 2_000
OLD_TOP_K = "top_k will limit sampling beside a collection, too: say n_documents for how many passages to retrieve"
MOST_TEXT = 100_000  # characters to be embedded at once; some seconds on a processor


def _titled(document: object) -> object:
    if isinstance(document, str):
        return {"text": document}
    refuse_misspelt(document, Document.model_fields)
    return document


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _inputs(value: object) -> object:
    """Make a list of texts, or lists of ids, of what may be one of them alone."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    for one in value if isinstance(value, list) else ():
        if not isinstance(one, str) and not _is_ids(one):
            raise ValueError("give a text, or the ids of its tokens, or a list of these")
    return value


def _one_prompt(value: object) -> object:
    """Take a text, its ids, or a list of one of them."""
    if isinstance(value, list) and len(value) == 1 and not _is_ids(value):
        value = value[0]
    if not isinstance(value, str) and not _is_ids(value):
        raise ValueError("give one text, or the ids of its tokens; several prompts are several requests")
    return value


_TEXT: dict[str, Any] = {"type": "string"}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
OnePrompt = Annotated[
    str | list[int],
    BeforeValidator(_one_prompt),
    WithJsonSchema({"anyOf": [_TEXT, _IDS, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1}]}),
]


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


class RequestBody(SamplingFields, FormatFields):
    """What every request of an answer may have; None takes the server's setting."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    mode: Mode | None = None
    seam_tokens: int | None = Field(None, ge=0)
    compose: Compose | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_elsewhere(given, cls.model_fields)
        refuse_unknown(given, cls.model_fields)
        return given

    def more_sampling(self) -> dict[str, Any]:
        return super().more_sampling() | {"grammar": self.grammar}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(RequestBody):
    messages: Annotated[list[ChatMessage], FAST, Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: int | None = Field(None, ge=1)
    documents: Annotated[list[Given], FAST, Field(max_length=MOST_DOCUMENTS)] | None = None
    collection: str | None = None
    n_documents: int | None = Field(None, ge=1, le=MOST_DOCUMENTS)
    min_similarity: float | None = Field(None, ge=-1, le=1)
    order: Order | None = None
    logprobs: bool | None = None
    top_logprobs: ChatTop | None = None

    @model_validator(mode="after")
    def _top_of_what_is_told(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true beside it", param="top_logprobs")
        return self

    @property
    def n_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def is_top_k_of_documents(self) -> bool:
        """Whether ``top_k`` is still how many passages to retrieve, as it once was, and not a limit of sampling."""
        return self.collection is not None and self.n_documents is None and (self.top_k or 0) > 0

    def more_sampling(self) -> dict[str, Any]:
        return super().more_sampling() | ({"top_k": 0} if self.is_top_k_of_documents else {})


def wanted_documents(body: ChatRequest) -> tuple[int | None, dict[str, str]]:
    """Return how many passages to retrieve, None for the server's setting, and headers that warn."""
    if not body.is_top_k_of_documents:
        return body.n_documents, {}
    log.warning("a request's %s", OLD_TOP_K)
    assert body.top_k is not None
    return min(body.top_k, MOST_DOCUMENTS), {"Warning": f'299 hypic-rag "{OLD_TOP_K}"'}


class CompletionRequest(RequestBody):
    """A text to go on from; what asks over documents is the chat's."""

    prompt: OnePrompt
    logprobs: TextTop | None = None

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs


class EmbeddingRequest(BaseModel):
    model: str | None = None
    input: Annotated[
        list[Annotated[str | list[int], Field(min_length=1, max_length=MOST_TEXT)]],
        FAST,
        Field(min_length=1, max_length=2048),
        BeforeValidator(_inputs),
        WithJsonSchema({"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}}]}),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_unknown(given, cls.model_fields)
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
        **body.more_sampling(),
    )
