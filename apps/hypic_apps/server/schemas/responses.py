"""What answers hold: for the schema (``/openapi.json``), of which clients are made. Nothing is checked by these when an
answer is sent; the tests hold answers to them."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from hypic_rag.engine.policy import Compose, Mode

One = TypeVar("One")
Tier = Literal["device", "host", "disk", "remote", "conversation", "live"]


class ListBody(BaseModel, Generic[One]):
    """A list, in OpenAI's form."""

    object: Literal["list"]
    data: list[One]


class PageBody(ListBody[One], Generic[One]):
    """A part of a list. The next one comes ``after`` its ``last_id``, where it ``has_more``."""

    first_id: str | None
    last_id: str | None
    has_more: bool


class CachedTokens(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class UsedDocument(BaseModel):
    """A document of the prompt. similarity: cosine, where it was found for the question. tier: where its segment came
    from; null: it was prefilled for this answer, for the ``miss_reason``. page_label: "7", or "7–8", where it is known
    on which pages of the file it stands."""

    index: int
    title: str
    source: str | None
    page_label: str | None
    text: str
    similarity: float | None
    file_id: str | None
    n_tokens: int
    tier: Tier | None
    miss_reason: str | None


class Milliseconds(BaseModel):
    """queue: from arrival to the engine, the search for documents included. prefill: of what missed. ttft: the
    engine's, to the first token. total: from arrival to the last."""

    queue: float
    prefill: float
    assemble: float
    ttft: float
    decode: float
    total: float


class PromptSegment(BaseModel):
    """A stretch of the prompt. document: its index among ``documents``."""

    kind: Literal["leading", "document", "live"]
    n_tokens: int
    seam_tokens: int
    tier: Tier | None
    miss_reason: str | None
    document: int | None


class Hypic(BaseModel):
    """What the answer cost. n_dropped: documents that were found and had no room. max_tokens: that the
    answer might have had. answered: false where the text says
    that the documents do not say; null without documents."""

    mode: Mode
    seam_tokens: int
    compose: Compose
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
    resumed_tokens: int
    n_dropped: int
    max_tokens: int
    finish_reason: Literal["stop", "length", "repetition"]
    answered: bool | None
    ms: Milliseconds
    segments: list[PromptSegment]


class Cited(BaseModel):
    """What an answer was made from. url: where this server gives the file's passages. start_index, end_index: of the
    answer's characters, all of them. document: the index in ``documents``."""

    title: str
    url: str
    start_index: int
    end_index: int
    file_id: str
    filename: str
    page_label: str | None
    document: int


class Citation(BaseModel):
    type: Literal["url_citation"]
    url_citation: Cited


class AnswerMessage(BaseModel):
    """annotations: of each passage of a collection in the prompt, in its order."""

    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[Citation]


class OneLogprob(BaseModel):
    """bytes: null where a token's are not known."""

    token: str
    logprob: float
    bytes: list[int] | None


class PlaceLogprobs(OneLogprob):
    """The token that was drawn. top_logprobs: of the likeliest in its place."""

    top_logprobs: list[OneLogprob]


class ChatLogprobs(BaseModel):
    content: list[PlaceLogprobs]
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatAnswer(BaseModel):
    """With ``stream`` it comes in OpenAI's chunks instead: the first has ``documents``, the last with a choice them
    again without their texts, ``hypic``, and the annotations in its delta. ``usage`` has a chunk of its own where
    ``stream_options.include_usage`` asks for it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    documents: list[UsedDocument]
    hypic: Hypic


class TextLogprobs(BaseModel):
    """One a token of the answer. top_logprobs: by text, with the drawn one's."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    hypic: Hypic


class FlatCitation(Cited):
    type: Literal["url_citation"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[FlatCitation]
    logprobs: list[PlaceLogprobs]


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningTokens(BaseModel):
    reasoning_tokens: Literal[0]


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(BaseModel):
    """With ``stream`` it comes in OpenAI's events instead, the last with all that is here."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool
    previous_response_id: None
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["auto"]
    tools: list[None]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    documents: list[UsedDocument]
    hypic: Hypic


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """embedding: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(BaseModel):
    object: Literal["list"]
    model: str
    usage: EmbeddingUsage
    data: list[Embedding]


class PolicyBody(BaseModel):
    mode: Mode
    seam_tokens: int
    compose: Compose


class ModelBody(BaseModel):
    """A model, a collection over it, or the embedder, which answers nothing: its lengths and policy are null."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int | None
    max_model_len: int | None
    policy: PolicyBody | None


class ProgressBody(BaseModel):
    """Files, of which n_done are ready or failed; tokens prefilled of those to be prefilled."""

    n_done: int
    n_failed: int
    n_total: int
    tokens_done: int
    tokens_total: int


class CollectionBody(BaseModel):
    """bytes: of its segments on the disk."""

    id: str
    object: Literal["collection"]
    name: str
    created_at: int
    n_files: int
    n_documents: int
    n_chunks: int
    bytes: int
    status: Literal["working", "ready"]
    progress: ProgressBody


class FileBody(BaseModel):
    """error: where it failed."""

    object: Literal["file"]
    id: str
    filename: str
    bytes: int
    created_at: int
    status: Literal["queued", "parsing", "prefilling", "ready", "failed"]
    error: str | None
    n_documents: int
    n_chunks: int
    n_segments: int
    n_prefilled: int
    tokens_done: int
    tokens_total: int


class FoundChunk(BaseModel):
    file_id: str
    title: str
    page_label: str | None
    text: str
    similarity: float


class Deleted(BaseModel):
    id: str
    object: Literal["collection", "file"]
    deleted: Literal[True]


def ok(model: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Make a route's ``responses``."""
    return {status: {"model": model}}
