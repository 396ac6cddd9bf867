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


def test_litellm(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network
    litellm = pytest.importorskip("litellm", reason="pip install litellm")
    given: Any = {"api_base": server.url + "/v1", "api_key": "none", "messages": QUESTION, "max_tokens": 4}
    whole = litellm.completion(model="openai/notes", **given)
    chunks = list(litellm.completion(model="openai/notes", stream=True, **given))
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 4


def test_a_collection_is_a_vector_store(client: openai.OpenAI, server: Running) -> None:
    made = client.vector_stores.create(name="shelf")
    url = f"{server.url}/v1/collections/shelf"
    for name in ("violin", "harbour", "lantern"):
        assert httpx.post(f"{url}/texts", json={"text": text(name), "filename": f"../{name}"}).status_code == 202
    while (made := client.vector_stores.retrieve(made.id)).status != "completed":
        time.sleep(0.02)
    assert made.file_counts.completed == 3 and made.name == "shelf"
    files = list(client.vector_stores.files.list(made.id, limit=2))  # the client turns the pages
    assert [one.filename for one in files] == ["lantern.txt", "harbour.txt", "violin.txt"]  # type: ignore[attr-defined]
    best, *_ = client.vector_stores.search(made.id, query="violin matters", max_num_results=2)
    assert best.filename == "violin.txt" and best.score > 0.3
    read = [one.text or "" for one in client.vector_stores.files.content(best.file_id, vector_store_id=made.id)]
    assert " ".join(" ".join(read).split()) == text("violin")
    high: Any = {"score_threshold": 0.999}
    assert not list(client.vector_stores.search(made.id, query="violin matters", ranking_options=high))
    client.vector_stores.update(made.id, name="rack")
    assert httpx.get(url).status_code == 404 and client.models.retrieve("rack")
    got = client.chat.completions.create(
        model="rack", messages=QUESTION, max_tokens=1, extra_body={"n_documents": 1, "min_similarity": 0.1}
    )
    assert len(got.documents) == 1  # type: ignore[attr-defined]
    for wrong in ({"filters": {"type": "eq", "key": "a", "value": 1}}, {"rewrite_query": True}):
        refused = httpx.post(f"{server.url}/v1/vector_stores/{made.id}/search", json={"query": "x", **wrong})
        assert refused.status_code == 400
    client.vector_stores.files.delete(best.file_id, vector_store_id=made.id)
    assert client.vector_stores.retrieve(made.id).file_counts.total == 2
    assert client.vector_stores.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(made.id)


def test_lists_come_in_parts(server: Running) -> None:
    url = f"{server.url}/v1/collections/notes/files"
    first = httpx.get(url, params={"limit": 1}).json()
    rest = httpx.get(url, params={"after": first["last_id"]}).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert [*first["data"], *rest["data"]] == httpx.get(url).json()["data"]
    assert httpx.get(url, params={"after": "x"}).status_code == 400
    assert httpx.get(f"{server.url}/v1/collections", params={"limit": 0}).status_code == 400


def test_a_collection_gets_another_name(server: Running) -> None:
    url = f"{server.url}/v1/collections"
    for name in ("a", "b"):
        httpx.post(url, json={"name": name})
    assert httpx.patch(f"{url}/a", json={"name": "b"}).status_code == 409
    assert httpx.patch(f"{url}/a", json={"name": "../c"}).status_code == 400
    assert httpx.patch(f"{url}/x", json={"name": "c"}).status_code == 404
    assert httpx.patch(f"{url}/a", json={"name": "c"}).json()["name"] == "c"
    assert [httpx.delete(f"{url}/{name}").status_code for name in ("a", "b", "c")] == [404, 200, 200]
