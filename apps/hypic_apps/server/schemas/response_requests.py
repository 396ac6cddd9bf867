"""What /v1/responses takes, in OpenAI's words, and the same request in the words of a chat."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from hypic_apps.server.errors import ApiError
from hypic_apps.server.schemas.known_fields import refuse_unknown
from hypic_apps.server.schemas.requests import MOST_DOCUMENTS, MOST_MESSAGES, ChatRequest, Given
from hypic_apps.server.schemas.sampling_fields import FAST, ChatTop
from hypic_rag.engine.policy import Compose, Mode
from hypic_rag.rag.order import Order

TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(BaseModel):
    """A message: nothing else is taken as input. content: a text, or parts of texts."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]

    def as_message(self) -> dict[str, Any]:
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        parts = [{**part, "type": "text"} if part.get("type") in TEXT_PARTS else part for part in self.content]
        return {"role": self.role, "content": parts}


class TextFormat(BaseModel):
    """A chat's ``response_format`` without the level between."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    def as_response_format(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        if self.schema_ is None:
            text = 'text.format has no schema: give {"type": "json_schema", "schema": {...}}'
            raise ApiError(400, text, param="text")
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_}}


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ResponsesRequest(BaseModel):
    """The part that text needs. Nothing is kept, so that there is no response to go on from or to get again."""

    input: str | Annotated[list[InputItem], FAST, Field(min_length=1, max_length=MOST_MESSAGES)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None
    text: TextOptions | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: ChatTop | None = None
    truncation: Literal["disabled"] | None = None
    metadata: dict[str, str] | None = None
    documents: Annotated[list[Given], FAST, Field(max_length=MOST_DOCUMENTS)] | None = None
    collection: str | None = None
    n_documents: int | None = Field(None, ge=1, le=MOST_DOCUMENTS)
    order: Order | None = None
    mode: Mode | None = None
    seam_tokens: int | None = Field(None, ge=0)
    compose: Compose | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        refuse_unknown(given, cls.model_fields)
        return given

    @property
    def text_format(self) -> TextFormat:
        return (self.text and self.text.format) or TextFormat.model_validate({})

    def as_chat(self) -> ChatRequest:
        """Return the chat that asks the same. Raises ValidationError of pydantic, ApiError."""
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages = [item.as_message() for item in items]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        same = ("model", "temperature", "top_p", "stream", "collection", "n_documents", "order", "mode", "seam_tokens",
                "compose")  # fmt: skip
        fields = {name: getattr(self, name) for name in same}
        fields["documents"] = self.documents and [one.model_dump() for one in self.documents]
        if self.include:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return ChatRequest.model_validate(
            {
                **fields,
                "messages": messages,
                "max_completion_tokens": self.max_output_tokens,
                "response_format": self.text_format.as_response_format(),
            }
        )
