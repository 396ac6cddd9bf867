"""Several answers to a request, through OpenAI's client."""

from typing import Any

import openai
import pytest
from tiny_server import Running, turns

from hypic_rag import Sampling

SETTINGS: Any = {
    "model": "tiny-qwen3_5_text", "messages": turns("Who built it?"), "max_tokens": 5, "temperature": 3, "seed": 11,
}  # fmt: skip


def wanted(server: Running, n: int) -> list[str]:
    prompt = server.engine.format.chat([("user", "Who built it?")])
    return [server.engine.generate(prompt, one).text for one in Sampling(5, 3.0, seed=11).several(n)]


def test_choices_are_as_if_asked_alone(client: openai.OpenAI, server: Running) -> None:
    want = wanted(server, 3)
    got = client.chat.completions.create(**SETTINGS, n=3, logprobs=True)
    assert [choice.message.content for choice in got.choices] == want and len({*want}) == 3
    assert [choice.index for choice in got.choices] == [0, 1, 2]
    one = client.chat.completions.create(**SETTINGS)
    assert got.usage and one.usage
    assert got.usage.prompt_tokens == one.usage.prompt_tokens and got.usage.completion_tokens == 15
    for choice in got.choices:
        assert choice.logprobs and choice.logprobs.content
        assert "".join(place.token for place in choice.logprobs.content) == choice.message.content


def test_streamed(client: openai.OpenAI, server: Running) -> None:
    chunks = list(client.chat.completions.create(**SETTINGS, n=3, stream=True, stream_options={"include_usage": True}))
    texts, reasons = ["", "", ""], []
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
    assert texts == wanted(server, 3)
    assert sorted(reasons) == [(i, "length") for i in range(3)]
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 15
    assert [bool(getattr(chunk, "hypic", None)) for chunk in chunks[:-1]] == [False] * (len(chunks) - 2) + [True]


def test_completions(client: openai.OpenAI) -> None:
    fields: Any = {**SETTINGS, "prompt": "Who built it?", "n": 2, "logprobs": 0}
    del fields["messages"]
    got = client.completions.create(**fields)
    assert [choice.index for choice in got.choices] == [0, 1] and got.choices[0].text != got.choices[1].text
    texts, offsets = ["", ""], [[], []]  # type: ignore[var-annotated]
    for chunk in client.completions.create(**fields, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        offsets[choice.index] += choice.logprobs.text_offset or [] if choice.logprobs else []
    assert texts == [choice.text for choice in got.choices]
    assert offsets == [choice.logprobs.text_offset for choice in got.choices if choice.logprobs]


@pytest.mark.parametrize("n, said", [(0, "n"), (9, "at most 8"), (129, "n"), (True, "n")])
def test_what_is_refused(server: Running, n: Any, said: str) -> None:
    got = server.post("/v1/chat/completions", messages=turns("Who?"), n=n)
    assert got.status_code == 400 and said in got.json()["error"]["message"]
    assert got.json()["error"]["param"] == "n"


def test_either_answer_can_be_gone_on_from(server: Running) -> None:
    first = server.chat("Who?", n=2, temperature=3, seed=1, max_tokens=8)["choices"]
    for choice in first:
        second = server.chat("Who?", choice["message"]["content"], "And then?")
        assert second["hypic"]["resumed_tokens"] > 0
