"""A collection through the clients that people have: as a model, with citations."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from collecting import make_service, text
from tiny_server import Running, running

MODEL = "tiny-qwen3_5_text"
QUESTION: Any = [{"role": "user", "content": "What matters to the violin?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With a collection ``notes`` of two files."""
    service = make_service(tmp_path_factory.mktemp("server"))
    with running(service) as made:
        made.post("/v1/collections", name="notes")
        files = [("file", (f"{name}.txt", text(name))) for name in ("violin", "harbour")]
        assert httpx.post(f"{made.url}/v1/collections/notes/files", files=files).status_code == 202
        while httpx.get(f"{made.url}/v1/collections/notes").json()["status"] != "ready":
            time.sleep(0.02)
        yield made
    service.engine.cache.close()


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("name", ["notes", f"{MODEL}:notes", "default:notes"])
def test_a_collection_is_a_model(client: openai.OpenAI, server: Running, name: str) -> None:
    got = client.chat.completions.create(model=name, messages=QUESTION, max_tokens=4)
    same = server.chat(*(one["content"] for one in QUESTION), collection="notes", max_tokens=4)
    assert got.choices[0].message.content == same["choices"][0]["message"]["content"]
    assert (got.model, same["model"]) == (f"{MODEL}:notes", MODEL)
    assert client.models.retrieve(name).id == got.model
    assert [one.id for one in client.models.list()] == [MODEL, f"{MODEL}:notes", "fake-embedder"]
    citations = got.choices[0].message.annotations
    assert citations and len(citations) == len(got.documents)  # type: ignore[attr-defined]
    for one, document in zip(citations, got.documents, strict=True):  # type: ignore[attr-defined]
        cited = one.url_citation
        assert (cited.start_index, cited.end_index) == (0, len(got.choices[0].message.content or ""))
        assert cited.title == document["title"] and cited.file_id == document["file_id"]  # type: ignore[attr-defined]
        assert document["text"] in [one["text"] for one in httpx.get(cited.url).json()["data"]]


def test_a_streamed_answer_has_its_citations_at_the_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="notes", messages=QUESTION, max_tokens=4)
    *_, last = client.chat.completions.create(model="notes", messages=QUESTION, max_tokens=4, stream=True)
    expected = [one.model_dump() for one in whole.choices[0].message.annotations or ()]
    assert last.choices[0].delta.annotations == expected  # type: ignore[attr-defined]


def test_langchain(server: Running) -> None:
    langchain_openai = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    given: Any = {"base_url": server.url + "/v1", "api_key": "none", "max_retries": 0}
    chat = langchain_openai.ChatOpenAI(model="notes", max_tokens=4, **given)
    whole = chat.invoke("What matters to the violin?")
    streamed = list(chat.stream("What matters to the violin?", stream_usage=True))
    total = streamed[0]
    for one in streamed[1:]:
        total += one
    assert total.content == whole.content
    assert total.usage_metadata == whole.usage_metadata and whole.usage_metadata["output_tokens"] == 4
    embedder = langchain_openai.OpenAIEmbeddings(model="fake-embedder", check_embedding_ctx_length=False, **given)
    assert len(embedder.embed_query("violin")) == server.service.embedder.dimension


def test_litellm(server: Running) -> None:
    litellm = pytest.importorskip("litellm", reason="pip install litellm")
    given: Any = {"api_base": server.url + "/v1", "api_key": "none", "messages": QUESTION, "max_tokens": 4}
    whole = litellm.completion(model="openai/notes", **given)
    chunks = list(litellm.completion(model="openai/notes", stream=True, **given))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 4
