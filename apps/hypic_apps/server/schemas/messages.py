"""A conversation's messages as OpenAI's clients write them, also those that they got as answers and send back."""

import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from hypic_rag.rag import Message


def _joined(content: object) -> object:
    """Join a message's text: a string, or the texts of its parts, a line each, as vLLM does."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if kind == "refusal":
            kind, text = "text", part.get("refusal")
        if kind != "text" or not isinstance(text, str):
            told = f", not of type {kind[:60]!r}" if isinstance(kind, str) else ""
            raise ValueError(f"a part of a message can only be {{'type': 'text', 'text': '...'}}{told}")
        texts.append(text)
    return "\n".join(texts)


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


class CalledFunction(BaseModel):
    name: str = Field(max_length=200)
    arguments: str


class ToolCall(BaseModel):
    """A call that an earlier answer made. arguments: JSON, in a string."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """content: null where the assistant said nothing, and only called tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=128)
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"the content of a message of the role {self.role} is missing: give a text")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant calls tools: leave tool_calls out")
        return self

    @property
    def text(self) -> str:
        """What it says; calls of tools behind it, as most models write them."""
        said = [self.content] if self.content else []
        for call in self.tool_calls or ():
            named, given = json.dumps(call.function.name), call.function.arguments.strip() or "{}"
            said.append(f'<tool_call>\n{{"name": {named}, "arguments": {given}}}\n</tool_call>')
        return "\n".join(said)


def conversation(messages: Iterable[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages as the pipeline takes them: what a developer says is the system's."""
    return tuple(Message("system" if one.role == "developer" else one.role, one.text) for one in messages)
