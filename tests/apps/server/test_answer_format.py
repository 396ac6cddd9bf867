"""Answers of a given form through OpenAI's client: from random weights, so that chance would write none of them."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from tiny_server import Running, turns

DOCUMENTS = [{"title": "Lighthouse", "text": "The lighthouse of Porto Vells was built in 1871 by Ada Marrow."}]
SETTINGS: Any = {"model": "tiny-qwen3_5_text", "messages": turns("Who built it?"), "max_tokens": 400}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"who": {"type": "string", "maxLength": 9}, "sure": {"type": "boolean"}},
    "required": ["who", "sure"],
    "additionalProperties": False,
}


class Builder(BaseModel):
    name: str = Field(max_length=9)
    year: int = Field(ge=0, le=2100)
    trade: Literal["mason", "keeper"]


@pytest.mark.parametrize("extra", [{}, {"documents": DOCUMENTS}], ids=["alone", "over documents"])
def test_openais_own_parsing(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    got = client.chat.completions.parse(**SETTINGS, response_format=Builder, temperature=9, extra_body=extra)
    assert isinstance(got.choices[0].message.parsed, Builder)
    assert got.choices[0].finish_reason == "stop"


FORMS: dict[str, dict[str, Any]] = {
    "OpenAI's": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "vLLM's": {"guided_json": SCHEMA},
    "vLLM's, as text": {"guided_json": json.dumps(SCHEMA)},
}


@pytest.mark.parametrize("fields", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("stream", [False, True])
def test_schemas(server: Running, fields: dict[str, Any], stream: bool) -> None:
    """Chats and completions, streamed and not: each answer validates."""
    for path, asked in (("chat/completions", {"messages": turns("Who?")}), ("completions", {"prompt": "Who?"})):
        for seed in range(3):
            body = {**asked, **fields, "max_tokens": 200, "temperature": 9, "seed": seed, "stream": stream}
            got = server.post(f"/v1/{path}", **body)
            assert got.status_code == 200, got.text
            jsonschema.validate(json.loads(text_of(got.text, stream)), SCHEMA)


def text_of(body: str, stream: bool) -> str:
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line.startswith("data: {")]
    choices = [json.loads(line)["choices"][0] for line in (lines if stream else [body])]
    return "".join(
        (one.get("delta") or one.get("message") or {}).get("content") or one.get("text", "") for one in choices
    )


def test_any_object(server: Running) -> None:
    """Its end is not bounded: what matters is that it begins as one and is one where it ends by itself."""
    for seed in range(4):
        got = server.chat("Who?", response_format={"type": "json_object"}, temperature=9, seed=seed, max_tokens=60)
        text = got["choices"][0]["message"]["content"]
        assert text.startswith("{")
        if got["choices"][0]["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


def test_choices_and_expressions(server: Running) -> None:
    chosen = server.chat("Who?", guided_choice=["Ada", "nobody"], max_tokens=20)["choices"][0]
    assert chosen["message"]["content"] in ("Ada", "nobody") and chosen["finish_reason"] == "stop"
    written = server.chat("Who?", guided_regex=r"\d{3}-[a-c]", max_tokens=20)["choices"][0]["message"]["content"]
    assert re.fullmatch(r"\d{3}-[a-c]", written)


def test_text_is_what_there_is_anyway(server: Running) -> None:
    plain = server.chat("Who?")
    assert server.chat("Who?", response_format={"type": "text"})["choices"] == plain["choices"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such form": ({"response_format": {"type": "yaml"}}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "json_schema"),
    "a schema of nothing": ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "schema"),
    "a keyword that cannot be held to": ({"guided_json": {"not": {}}}, "cannot be held to this json_schema"),
    "no JSON": ({"guided_json": "{"}, "cannot be read"),
    "both": ({"guided_regex": "a", "guided_choice": ["a"]}, "not both"),
    "no choice": ({"guided_choice": []}, "guided_choice"),
    "an expression that is none": ({"guided_regex": "("}, "regex"),
    "an end elsewhere": ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
    "a list for a schema": ({"guided_json": []}, "guided_json"),
}


@pytest.mark.parametrize("fields, said", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(server: Running, fields: dict[str, Any], said: str, stream: bool) -> None:
    got = server.post("/v1/chat/completions", messages=turns("Who?"), stream=stream, **fields)
    assert got.status_code == 400 and said in got.json()["error"]["message"], got.text


def test_a_deep_schema_breaks_nothing(server: Running) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    got = server.post("/v1/chat/completions", messages=turns("Who?"), guided_json=schema, max_tokens=5)
    assert got.status_code in (200, 400)
