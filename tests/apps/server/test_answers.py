"""Answers hold what the schema says of them, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from collecting import Api, make_service, serving, text
from fastapi.routing import APIRoute
from hypic_apps.server.routes import (
    chat,
    completions,
    embeddings,
    files,
    models,
    responses,
    texts,
    tokens,
    vector_stores,
)
from hypic_apps.server.routes import collections as collection_routes

QUESTION = {"messages": [{"role": "user", "content": "What matters?"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(make_service(tmp_path_factory.mktemp("server"))) as asked:
        yield asked


def routes() -> dict[tuple[str, str], APIRoute]:
    parts = (chat, collection_routes, completions, embeddings, files, models, responses, texts, tokens, vector_stores)
    found = [route for part in parts for route in part.router.routes if isinstance(route, APIRoute)]
    return {(method, route.path): route for route in found for method in route.methods or ()}


def test_answers_are_as_the_schema_says(api: Api) -> None:
    known = routes()
    left = {*known}
    ids: dict[str, str] = {}

    def ask(method: str, route: str, status: int = 200, **options: Any) -> Any:
        answer = api.client.request(method, re.sub(r"\{(\w+)[^}]*\}", lambda found: ids[found[1]], route), **options)
        assert answer.status_code == status, answer.text
        left.discard((method, route))
        model = known[method, route].responses[status]["model"]
        assert model.model_validate(answer.json()).model_dump() == answer.json()
        return answer.json()

    ids["name"] = "notes"
    ask("POST", "/v1/collections", 201, json={"name": "notes"})
    ids["file_id"] = ask(
        "POST",
        "/v1/collections/{name}/files",
        202,
        files=[("file", ("a.txt", text("violin"))), ("file", ("b.txt", " "))],
    )["data"][0]["id"]
    api.until("ready", ids["file_id"])
    assert {file["status"] for file in ask("GET", "/v1/collections/{name}/files")["data"]} >= {"ready"}
    ask("GET", "/v1/collections/{name}/files/{file_id}")
    ask("GET", "/v1/collections")
    ask("GET", "/v1/collections/{name}")
    ids["name"] = ask("PATCH", "/v1/collections/{name}", json={"name": "more"})["name"]
    ids["name"] = ask("PATCH", "/v1/collections/{name}", json={"name": "notes"})["name"]
    sent = ask("POST", "/v1/collections/{name}/texts", 202, json={"text": "A harbour.", "filename": "a.md"})
    api.until("ready", sent["id"])
    ids["store_id"] = ask("GET", "/v1/vector_stores")["data"][0]["id"]
    ask("GET", "/v1/vector_stores/{store_id}")
    ask("POST", "/v1/vector_stores/{store_id}", json={"name": "notes"})
    assert ask("POST", "/v1/vector_stores/{store_id}/search", json={"query": "harbour"})["data"]
    assert len(ask("GET", "/v1/vector_stores/{store_id}/files")["data"]) == 3
    ask("GET", "/v1/vector_stores/{store_id}/files/{file_id}")
    assert ask("GET", "/v1/vector_stores/{store_id}/files/{file_id}/content")["data"]
    assert ask("GET", "/v1/collections/{name}/search", params={"q": "violin"})["data"]
    assert ask("POST", "/v1/chat/completions", json={**QUESTION, "collection": "notes"})["documents"]
    by_model = ask("POST", "/v1/chat/completions", json={**QUESTION, "model": "notes"})
    assert by_model["choices"][0]["message"]["annotations"]
    ask("POST", "/tokenize", json={"prompt": "Once"})
    ask("POST", "/detokenize", json={"tokens": [1]})
    ask("POST", "/v1/completions", json={"prompt": "Once", "max_tokens": 3})
    ask("POST", "/v1/responses", json={"input": "What matters?", "max_output_tokens": 3, "collection": "notes"})
    ask("POST", "/v1/embeddings", json={"input": ["violin", "harbour"]})
    ask("DELETE", "/v1/collections/{name}/files/{file_id}")
    ids["file_id"] = sent["id"]
    ask("DELETE", "/v1/vector_stores/{store_id}/files/{file_id}")
    ids["store_id"] = ask("POST", "/v1/vector_stores", json={"name": "other"})["id"]
    ask("DELETE", "/v1/vector_stores/{store_id}")
    ask("DELETE", "/v1/collections/{name}")
    ids["name"] = ask("GET", "/v1/models")["data"][0]["id"]
    ask("GET", "/v1/models/{name:path}")
    assert not left
