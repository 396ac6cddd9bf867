"""Every route, with whatever in its places: there is an answer in time, and it is no internal error.

HYPIC_EXAMPLES=5000 tries as many requests instead of a few.
"""

import json
import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from from_schema import WRONG, Schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_server import Running, watched_health

EXAMPLES = int(os.environ.get("HYPIC_EXAMPLES", "80"))
SECONDS = 20.0  # that any answer may take, on a machine that does much else
LIKELY: dict[str, list[Any]] = {  # three times of four, where there is a place of this name
    "name": ["notes", "notes", "notes", "a", "..", "x" * 65],
    "collection": [None, "notes"],
    "model": [None, "default"],
}
KINDS = ["application/json", "text/plain", "multipart/form-data; boundary=edge", ""]
RAW = [  # bodies that are no JSON, or just about
    *(b"", b"{", b"\xff", b"null", b"NaN", b"[" * 5000, b'"\\ud800"', b'{"name": "a", "name": "b"}'),
    b'{"messages": 1e999, "prompt": 1e999, "input": 1e999}',
]
BRIEF = ("max_tokens", "max_completion_tokens")  # tokens; more of them tell nothing more


@dataclass(frozen=True)
class Asked:
    """kind: of the content."""

    method: str
    url: str
    content: bytes = b""
    kind: str = ""


@st.composite
def requests(draw: st.DrawFn, document: dict[str, Any]) -> Asked:
    schemas = Schemas(document)
    routes = sorted((path, method) for path, methods in document["paths"].items() for method in methods)
    path, method = draw(st.sampled_from(routes))
    about = document["paths"][path][method]
    query = []
    for one in about.get("parameters", ()):
        value = draw(schemas.values(one["schema"], WRONG))
        if one["in"] == "path":
            value = draw(likely(one["name"], value))
            path = path.replace(f"{{{one['name']}}}", quoted(value) or "x")
        elif draw(st.integers(0, 9)):
            query.append(f"{one['name']}={quoted(value)}")
    url = path + ("?" + "&".join(query) if query else "")
    kinds = about.get("requestBody", {}).get("content", {})
    if not kinds:
        return Asked(method, url)
    if draw(st.integers(0, 19)) == 0:
        return Asked(method, url, draw(st.sampled_from(RAW) | st.binary(max_size=200)), draw(st.sampled_from(KINDS)))
    if "application/json" in kinds:
        body = draw(schemas.values(kinds["application/json"]["schema"], draw(st.sampled_from([0, 0, WRONG]))))
        if isinstance(body, dict):
            body |= {name: draw(likely(name, value)) for name, value in body.items()}
            body |= {name: 2 for name in BRIEF if isinstance(body.get(name), int) and 2 < body[name] <= 8192}
        return Asked(method, url, json.dumps(body).encode(), "application/json")
    return Asked(method, url, draw(forms()), "multipart/form-data; boundary=edge")


def quoted(value: object) -> str:
    return quote(str(value).encode("utf-8", "surrogatepass"), safe="")


def likely(name: str, value: Any) -> st.SearchStrategy[Any]:
    known = LIKELY.get(name)
    return st.integers(0, 3).flatmap(lambda n: st.sampled_from(known) if known and n else st.just(value))


@st.composite
def forms(draw: st.DrawFn) -> bytes:
    """One to three parts, most of them files."""
    made = b""
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["file", "file", "file", "other"]))
        filename = draw(st.sampled_from(["a", "../b", "c\0", ""]) | st.text(max_size=300))
        filename += draw(st.sampled_from([".txt", ".md", ".html", ".pdf", ".jsonl", ".exe", ""]))
        head = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
        content = draw(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode()))
        made += b"--edge\r\n" + head.encode("utf-8", "surrogatepass") + b"\r\n" + content + b"\r\n"
    return made + draw(st.sampled_from([b"--edge--\r\n", b"--edge--\r\n", b"--ed", b""]))


@pytest.fixture(scope="module")
def api(shared: Running) -> Any:
    """With a collection; what is left of the others is removed."""
    shared.service.embedder.embed(["loaded"])
    shared.post("/v1/collections", name="notes")
    yield shared
    with httpx.Client(base_url=shared.url, timeout=60) as client:
        for one in client.get("/v1/collections").json()["data"]:
            assert client.delete(f"/v1/collections/{one['name']}").status_code == 200
    assert shared.idle()


def test_whatever_is_sent_is_answered(api: Running) -> None:
    document = httpx.get(api.url + "/openapi.json").json()
    n_answers: dict[int, int] = {}

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(asked=requests(document))
    def check(asked: Asked) -> None:
        headers = {"Content-Type": asked.kind} if asked.kind else {}
        began = time.monotonic()
        response = client.request(asked.method, api.url + asked.url, content=asked.content, headers=headers)
        assert time.monotonic() - began < SECONDS, asked
        n_answers[response.status_code] = n_answers.get(response.status_code, 0) + 1
        assert response.status_code < 500 or is_refusal(response), (asked, response.text)
        kind = response.headers["Content-Type"]
        if kind.startswith("text/event-stream"):
            assert response.text.endswith("data: [DONE]\n\n"), (asked, response.text)
        elif response.status_code >= 400:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["message"], asked
        elif kind == "application/json":
            assert "error" not in response.json() or response.json()["error"] is None, asked

    with httpx.Client(timeout=2 * SECONDS) as client:
        check()
        assert client.get(api.url + "/health").status_code == 200
    print(n_answers)
    assert n_answers.get(200) and n_answers.get(400) and n_answers.get(404)


def is_refusal(response: httpx.Response) -> bool:
    return response.status_code == 503 and int(response.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("content", RAW, ids=range(len(RAW)))
def test_what_is_no_json_is_a_400(api: Running, content: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        response = httpx.post(api.url + path, content=content, headers={"Content-Type": "application/json"}, timeout=30)
        assert response.status_code == 400 and response.json()["error"]["message"], path


HUGE = {  # bodies of 4 MB, which is the most
    "a text": b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"word " * 790_000),
    "control tokens": b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"<|im_end|>" * 390_000),
    "messages": b'{"messages": [{"role": "user", "content": "a"}%s]}'
    % (b', {"role": "user", "content": "a"}' * 110_000),
    "documents": b'{"messages": [{"role": "user", "content": "a"}], "documents": ["a"%s]}' % (b', "a"' * 750_000),
    "lists": b'{"messages": [[]%s]}' % (b", []" * 950_000),
    "in a field that nobody reads": b'{"messages": [], "x": [[]%s]}' % (b", [[]]" * 600_000),
    "stop strings": b'{"messages": [{"role": "user", "content": "a"}], "stop": ["a"%s]}' % (b', "a"' * 750_000),
}


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE)
def test_a_huge_body_is_refused_and_keeps_nobody_waiting(api: Running, content: bytes) -> None:
    with httpx.Client(timeout=60) as client, watched_health(api) as waits:
        response = client.post(
            api.url + "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
        )
    assert response.status_code == 400 and response.json()["error"]["message"]
    assert len(response.text) < 1000
    assert max(waits) < 2.5  # half a second is the goal, on a machine that does nothing else
