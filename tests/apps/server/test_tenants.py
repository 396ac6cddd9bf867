"""Who is let in, and as whom."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypic_apps.server.auth.tenants import OPEN, STATIC
from operated import client, make_app, make_service

from hypic_rag.collections.tenant import Tenant, tenant_of


def test_without_keys_everybody_is_the_local_tenant(tmp_path: Path) -> None:
    with client(make_service(tmp_path)) as http:
        assert http.get("/v1/whose/x").json() == {"tenant": "local"}
        assert http.get("/metrics").status_code == 200


def test_a_key_says_whose_request_it_is_from_when_it_is_made_until_it_is_revoked(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    with client(service) as http:
        assert http.get("/v1/whose/x").status_code == 200
        key, secret = service.keys.add("acme")
        _, other = service.keys.add("other")
        for given, whose in ((secret, "acme"), (other, "other")):
            answer = http.get("/v1/whose/x", headers={"Authorization": f"bearer {given}"})
            assert answer.json() == {"tenant": whose}
        assert http.get("/v1/whose/x").status_code == 401
        service.keys.revoke(key.id)
        assert http.get("/v1/whose/x", headers={"Authorization": f"Bearer {secret}"}).status_code == 401


REFUSED = {
    "no header": [],
    "another scheme": [("Authorization", "Basic aHlwaWM6eA==")],
    "no secret": [("Authorization", "Bearer ")],
    "only a secret": [("Authorization", "SECRET")],
    "a wrong secret": [("Authorization", "Bearer hypic-x")],
    "bytes": [("Authorization", b"Bearer \xff\xfe")],
    "two headers": [("Authorization", "Bearer SECRET"), ("Authorization", "Bearer SECRET")],
    "in a cookie": [("Cookie", "key=SECRET")],
}


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED)
def test_what_has_no_key_is_refused_as_openai_does(tmp_path: Path, headers: list[tuple[str, str | bytes]]) -> None:
    service = make_service(tmp_path)
    _, secret = service.keys.add("acme")
    sent = [(name, value.replace("SECRET", secret) if isinstance(value, str) else value) for name, value in headers]
    with client(service) as http:
        answer = http.request("GET", "/v1/whose/x", headers=sent)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
    assert secret not in answer.text


def test_every_route_but_the_open_ones_asks_for_a_key(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    service.keys.add("acme")
    app = make_app(service)
    paths = {path for route in app.routes if (path := getattr(route, "path", None))} | set(app.openapi()["paths"])
    asked = {path for path in paths if path not in OPEN and not path.startswith(STATIC)}
    assert {"/v1/echo", "/metrics", "/openapi.json"} <= asked
    with client(service) as http:
        for path in [*asked, "//v1/echo", "/v1", "/nothing", "/V1/echo", "/health/", "/docs", "/redoc"]:
            for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD"):
                assert http.request(method, path, follow_redirects=False).status_code == 401, (method, path)
        for path in ("/health", "/ready"):
            assert http.get(path).status_code == 200
        assert http.get("/static/nothing.js").status_code == 404


def test_a_refused_body_is_not_read(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    service.keys.add("acme")
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("read before it was let in")

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/collections/a/files"
    headers = [(b"content-type", b"multipart/form-data; boundary=x"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(make_app(service)({**scope, "headers": headers, "root_path": ""}, receive, send))
    assert sent[0]["status"] == 401 and (b"connection", b"close") in sent[0]["headers"]


def test_metrics_are_an_operators(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    _, secret = service.keys.add("acme")
    _, operators = service.keys.add(None)
    with client(service, secret) as http:
        refused = http.get("/metrics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_kind_of_key")
    service = make_service(tmp_path)
    with client(service, operators) as http:
        assert "hypic_num_requests_running" in http.get("/metrics").text
        assert http.get("/v1/whose/x").status_code == 403
    service = make_service(tmp_path, metrics_open=True)
    with client(service) as http:
        assert http.get("/metrics").status_code == 200
        assert http.get("/v1/whose/x").status_code == 401


def test_no_keys_means_none_whatever_the_file_has(tmp_path: Path) -> None:
    service = make_service(tmp_path, no_keys=True)
    service.keys.add("acme")
    with client(service) as http:
        assert http.get("/v1/whose/x").json() == {"tenant": "local"}


def test_a_namespace_names_its_tenant() -> None:
    assert Tenant("acme").namespace() != Tenant("acme").namespace("a") != Tenant("acm").namespace("ea")
    assert tenant_of(Tenant("acme-2").namespace("a-b/c")) == tenant_of(Tenant("acme-2").namespace()) == "acme-2"
