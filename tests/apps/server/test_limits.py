"""Bodies that are too large, pages of elsewhere, and what answers say to browsers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypic_apps.server.request_limits import OneByOne, is_local_name
from operated import client, make_service

JSON = {"Content-Type": "application/json"}


def chunks(n: int, size: int = 500) -> Iterator[bytes]:
    yield b'{"text": "'
    for _ in range(n):
        yield b"x" * size
    yield b'"}'


def test_a_body_of_the_limit_goes_through_and_one_byte_more_does_not(tmp_path: Path) -> None:
    with client(make_service(tmp_path, max_body=1000)) as http:
        exact = b'{"a": "' + b"x" * (1000 - 9) + b'"}'
        assert http.post("/v1/echo", content=exact, headers=JSON).json() == {"n": 1}
        for content in (exact + b" ", chunks(2)):  # with its length, and in chunks
            answer = http.post("/v1/echo", content=content, headers=JSON)
            assert answer.status_code == 413 and answer.headers["connection"] == "close"
            error = answer.json()["error"]
            assert error["code"] == "request_too_large" and "1.0 kB" in error["message"]
        assert http.post("/v1/echo", content=exact, headers=JSON).status_code == 200


def test_uploads_have_a_limit_of_their_own(tmp_path: Path) -> None:
    with client(make_service(tmp_path, max_body=10, max_upload=1000)) as http:
        assert http.post("/v1/collections/a/files", files={"file": b"x" * 9000}).status_code == 404  # read
        assert http.post("/v1/collections/a/files", files={"file": b"x" * 10001}).status_code == 413
        assert http.post("/v1/echo", files={"file": b"x" * 9000}).status_code == 413


def test_a_crowd_does_not_keep_health_waiting() -> None:
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])

    async def main() -> None:
        one_by_one = OneByOne(app, {"/health"})

        async def ask(path: str) -> None:
            await one_by_one({"type": "http", "path": path}, None, None)  # type: ignore[arg-type]

        crowd = [asyncio.create_task(ask("/v1")) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(ask("/health"), *crowd)

    asyncio.run(main())
    assert len(begun) == 101 and begun.index("/health") < 5


FOREIGN = {
    "a page of elsewhere": ("testserver", "https://evil.example", 403),
    "a page of another port": ("testserver", "http://testserver:3000", 403),
    "a file that was opened": ("testserver", "null", 403),
    "the server's own page": ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
    "no page": ("localhost:8000", None, 200),
    "a name that was pointed here": ("evil.example:8000", "http://evil.example:8000", 403),
    "one that may": ("localhost", "https://app.example", 200),
}


@pytest.mark.parametrize("host, origin, status", FOREIGN.values(), ids=FOREIGN)
def test_without_keys_only_the_servers_own_page_may_change(
    tmp_path: Path, host: str, origin: str | None, status: int
) -> None:
    headers = {"Host": host, "Content-Type": "text/plain"} | ({"Origin": origin} if origin else {})
    with client(make_service(tmp_path, allowed_origins=("https://app.example",))) as http:
        answer = http.post("/v1/echo", content=b"{}", headers={**headers, "Content-Type": "application/json"})
    assert answer.status_code == status, answer.text


def test_where_keys_are_asked_for_they_decide(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    _, secret = service.keys.add("acme")
    with client(service, secret) as http:
        headers = {"Host": "rag.example", "Origin": "https://elsewhere.example"}
        assert http.post("/v1/echo", json={}, headers=headers).status_code == 200
    with client(make_service(tmp_path / "b", no_keys=True)) as http:
        assert http.post("/v1/echo", json={}, headers={"Host": "rag.example"}).status_code == 200
        assert http.post("/v1/echo", json={}, headers=headers).status_code == 403


NAMES = {
    "127.0.0.1:8000": True, "[::1]:8000": True, "localhost": True, "rag:8000": True, "10.1.2.3": True,
    "page.localhost:80": True, "evil.example": False, "127.0.0.1.evil.example": False, "evil.example.": False,
}  # fmt: skip


@pytest.mark.parametrize("host, local", NAMES.items())
def test_names_that_no_page_can_have(host: str, local: bool) -> None:
    assert is_local_name(host) is local


def test_answers_are_framed_by_nobody_and_not_kept(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    with client(service) as http:
        for answer in (http.get("/v1/whose/x"), http.get("/nothing"), http.post("/v1/echo", content=b"{")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "access-control-allow-origin" not in answer.headers
        assert http.get("/v1/whose/x").headers["cache-control"] == "no-store"


def test_named_origins_may_read_and_no_others(tmp_path: Path) -> None:
    service = make_service(tmp_path, allowed_origins=("https://app.example",))
    service.keys.add("acme")
    names = "authorization,content-type,x-stainless-os,x-whatever-comes"  # as OpenAI's own client sends
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    with client(service) as http:
        allowed = http.options("/v1/echo", headers={"Origin": "https://app.example", **ask})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in allowed.headers
        refused = http.options("/v1/echo", headers={"Origin": "https://evil.example", **ask})
        assert "access-control-allow-origin" not in refused.headers
        answer = http.get("/v1/whose/x", headers={"Origin": "https://app.example"})  # a page may read why it failed
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "https://app.example")
