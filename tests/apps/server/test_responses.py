"""/v1/responses through OpenAI's client, against the chat that asks the same."""

from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from tiny_server import Running, turns

MODEL = "tiny-qwen3_5_text"
DOCUMENTS = [{"title": "Lighthouse", "text": "The lighthouse of Porto Vells was built in 1871 by Ada Marrow."}]
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the request, and the chat
    "a text": ({"input": "Who built it?"}, {"messages": turns("Who built it?")}),
    "instructions": (
        {"input": "Who?", "instructions": "Be brief."},
        {"messages": [{"role": "system", "content": "Be brief."}, *turns("Who?")]},
    ),
    "messages": (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Who?"}]},
                {
                    "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "text": "Ada.", "annotations": []}],
                },
                {"role": "user", "content": "And when?"},
            ]
        },
        {"messages": turns("Who?", "Ada.", "And when?")},
    ),
    "over documents": (
        {"input": "Who?", "extra_body": {"documents": DOCUMENTS, "mode": "full"}},
        {"messages": turns("Who?"), "documents": DOCUMENTS, "mode": "full"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields, chat", ASKED.values(), ids=ASKED)
def test_it_answers_as_the_chat_does(
    client: openai.OpenAI, server: Running, fields: dict[str, Any], chat: dict[str, Any]
) -> None:
    want = server.chat(**chat)
    got = client.responses.create(model=MODEL, max_output_tokens=6, **fields)
    assert got.output_text == want["choices"][0]["message"]["content"] != ""
    assert got.status == "incomplete" and got.incomplete_details
    assert got.incomplete_details.reason == "max_output_tokens"
    assert got.usage and got.usage.input_tokens == want["usage"]["prompt_tokens"]
    assert got.usage.output_tokens == 6 and got.model == MODEL and got.error is None
    assert len(got.documents) == len(want["documents"])  # type: ignore[attr-defined]


def test_streamed_events_make_up_the_response(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": "Who built it?", "max_output_tokens": 6}
    include: Any = ["message.output_text.logprobs"]
    whole = client.responses.create(**fields, include=include, top_logprobs=2)
    events = list(client.responses.create(**fields, include=include, top_logprobs=2, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == len(kinds) - 8 > 1
    assert "".join(event.delta for event in deltas) == whole.output_text
    last = events[-1].response  # type: ignore[union-attr]
    assert last.output_text == whole.output_text and last.usage == whole.usage
    told = [one.model_dump() for event in deltas for one in event.logprobs]
    content: Any = whole.output[0].content[0]  # type: ignore[union-attr]
    assert [one["token"] for one in told] == [one.token for one in content.logprobs] and len(told) == 6


class Builder(BaseModel):
    name: str = Field(max_length=6)
    year: int = Field(ge=0, le=2100)


def test_schemas(client: openai.OpenAI, server: Running) -> None:
    got = client.responses.parse(model=MODEL, input="Who?", text_format=Builder, temperature=9, max_output_tokens=200)
    assert isinstance(got.output_parsed, Builder) and got.status == "completed"
    jsonschema.validate(got.output_parsed.model_dump(), Builder.model_json_schema())
    asked: Any = {"model": MODEL, "input": "Who?", "text_format": Builder, "max_output_tokens": 200}
    with client.responses.stream(**asked) as stream:  # OpenAI's own accumulation
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Builder)
    assert final.output_text == client.responses.parse(**asked).output_text


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"input": []}, "input"),
    "a call of a tool": ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "a part of a message"),
    "tools": ({"input": "x", "tools": [{"type": "web_search"}]}, "tools is not supported"),
    "an earlier response": ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    "to be kept": ({"input": "x", "store": True}, "store is not supported"),
    "no schema": ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}, "schema"),
    "another model": ({"input": "x", "model": "gpt-5"}, "there is no model"),
    "an invention": ({"input": "x", "colection": "y"}, "did you mean collection?"),
}


@pytest.mark.parametrize("fields, said", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(server: Running, fields: dict[str, Any], said: str, stream: bool) -> None:
    got = server.post("/v1/responses", stream=stream, **fields)
    assert got.status_code in (400, 404) and said in got.json()["error"]["message"], got.text


def test_an_error_under_way_ends_the_stream(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(server.engine.backend, "run", failing)
    events = server.post("/v1/responses", input="Who?", stream=True).text.strip().split("\n\n")
    assert events[-1].startswith("event: error\n") and "secret" not in events[-1]
