"""Fields that decide how an answer is drawn, and log-probabilities, through OpenAI's client."""

from typing import Any

import openai
import pytest
import torch
from tiny_server import Running, turns

from hypic_rag import Prompt, Sampling
from hypic_rag.engine.detokenizer import decoded

SETTINGS: Any = {"model": "tiny-qwen3_5_text", "messages": turns("Who built it?"), "max_tokens": 6}

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # what is sent, what the engine is asked for
    "temperature, top-k, seed": (
        {"temperature": 3, "top_k": 4, "seed": 5},
        {"temperature": 3.0, "top_k": 4, "seed": 5},
    ),
    "no top-k": ({"top_k": -1}, {}),
    "min-p": ({"temperature": 3, "min_p": 0.3, "seed": 5}, {"temperature": 3.0, "min_p": 0.3, "seed": 5}),
    "penalties": (
        {"frequency_penalty": -2, "presence_penalty": -1, "repetition_penalty": 0.5},
        {"frequency_penalty": -2.0, "presence_penalty": -1.0, "repetition_penalty": 0.5},
    ),
    "a bias": ({"logit_bias": {"300": 100}, "max_tokens": 3}, {"logit_bias": ((300, 100.0),), "max_new_tokens": 3}),
    "a stop token": (
        {"logit_bias": {"300": 100}, "stop_token_ids": [300], "min_tokens": 2},
        {"logit_bias": ((300, 100.0),), "stop_token_ids": (300,), "min_tokens": 2},
    ),
    "no end": (
        {"logit_bias": {"2": 100}, "ignore_eos": True},
        {"logit_bias": ((2, 100.0),), "ignore_eos": True, "stop_repetition": False},
    ),
}


@pytest.mark.parametrize("sent, meant", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_fields_reach_the_sampler(server: Running, route: str, sent: dict[str, Any], meant: dict[str, Any]) -> None:
    engine, chat = server.engine, route.startswith("chat")
    text = {"messages": SETTINGS["messages"]} if chat else {"prompt": "Who built it?"}
    got = server.post(f"/v1/{route}", **{**text, "max_tokens": 6, **sent})
    assert got.status_code == 200, got.text
    prompt = engine.format.chat([("user", "Who built it?")]) if chat else Prompt.build(
        (), (), engine.format.encode("Who built it?")
    )  # fmt: skip
    want = engine.generate(prompt, Sampling(**{"max_new_tokens": 6, **meant}))
    choice = got.json()["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == want.text
    assert got.json()["usage"]["completion_tokens"] == len(want.token_ids)
    assert choice["finish_reason"] == want.finish_reason


def test_log_probabilities_of_a_chat(client: openai.OpenAI, server: Running) -> None:
    """Against the engine's ``score``, which is one forward over prompt and answer."""
    engine = server.engine
    got = client.chat.completions.create(**SETTINGS, logprobs=True, top_logprobs=3)
    prompt = engine.format.chat([("user", "Who built it?")])
    ids = engine.generate(prompt, Sampling(6)).token_ids
    rows = engine.score(prompt, ids).logprobs
    assert got.choices[0].logprobs and got.choices[0].logprobs.content
    places = got.choices[0].logprobs.content
    assert b"".join(bytes(one.bytes or ()) for one in places).decode() == got.choices[0].message.content
    assert len(places) == len(ids) == 6
    for place, token, row in zip(places, ids, rows, strict=True):
        assert place.token == decoded(engine.tokenizer, [token])
        assert abs(place.logprob - float(row[token])) < 1e-4
        assert [one.token for one in place.top_logprobs] == [
            decoded(engine.tokenizer, [i]) for i in row.topk(3).indices.tolist()
        ]
        told = torch.tensor([one.logprob for one in place.top_logprobs])
        assert (told - row.topk(3).values).abs().max() < 1e-4
    chunks = client.chat.completions.create(**SETTINGS, logprobs=True, top_logprobs=3, stream=True)
    streamed = [
        one.model_dump()
        for chunk in chunks
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == [one.model_dump() for one in places]
    bare = client.chat.completions.create(**SETTINGS, logprobs=True).choices[0].logprobs
    assert bare and [one.top_logprobs for one in bare.content or ()] == [[]] * 6
    assert client.chat.completions.create(**SETTINGS).choices[0].logprobs is None


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny-qwen3_5_text", "prompt": "Who built it?", "max_tokens": 6, "logprobs": 2}
    got = client.completions.create(**fields).choices[0]
    told = got.logprobs
    assert told and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert "".join(told.tokens) == got.text
    assert [
        got.text[at : at + len(token)] for at, token in zip(told.text_offset, told.tokens, strict=True)
    ] == told.tokens
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values()) and len(top) == 2
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**fields, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for part in chunks if part for one in getattr(part, name)] == getattr(told, name)


def test_bytes_of_a_part_of_a_character(server: Running) -> None:
    texts, tokenizer = server.service.token_texts, server.engine.tokenizer
    ids = tokenizer.encode("naïve 🦔", add_special_tokens=False)
    assert b"".join(bytes(texts.of(token)[1] or ()) for token in ids).decode() == "naïve 🦔"
    assert any("\ufffd" in texts.of(token)[0] for token in ids)
    assert texts.of(tokenizer.convert_tokens_to_ids("<|im_end|>"))[0] == "<|im_end|>"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "top_k": ({"top_k": -2}, "top_k"),
    "min_p": ({"min_p": 2}, "min_p"),
    "a penalty": ({"frequency_penalty": 3}, "frequency_penalty"),
    "no penalty at all": ({"repetition_penalty": 0}, "repetition_penalty"),
    "a bias by text": ({"logit_bias": {"word": 1}}, "logit_bias"),
    "too large a bias": ({"logit_bias": {"5": 101}}, "logit_bias"),
    "a token that is none": ({"logit_bias": {"60000": 1}}, "49151"),
    "an end that is none": ({"stop_token_ids": [60000]}, "49151"),
    "too many of the likeliest": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "the likeliest of nothing": ({"top_logprobs": 2}, "logprobs: true"),
}


@pytest.mark.parametrize("fields, said", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(server: Running, fields: dict[str, Any], said: str, stream: bool) -> None:
    response = server.post("/v1/chat/completions", messages=turns("Who?"), stream=stream, **fields)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
