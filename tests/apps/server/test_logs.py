"""The log: a line a request, ids, and nothing of what was asked."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypic_apps.server.errors import api_error
from hypic_apps.server.observability import logs
from operated import DOCUMENT, client, make_app, make_service

from hypic_rag.errors import StoreDamaged


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calling it gives what was logged since, as objects."""
    levels = {name: logging.getLogger(name).level for name in ("root", *logs.OURS)}
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up("json", "info")

    def since() -> list[dict[str, Any]]:
        told = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in told]

    yield since
    logging.root.handlers[:] = []
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_a_request_is_one_line_without_anything_of_it(tmp_path: Path, lines: Any) -> None:
    service = make_service(tmp_path)
    key, secret = service.keys.add("acme")
    with client(service, secret) as http:
        lines()
        answer = http.get("/v1/whose/secret-plans?q=secret-question", headers={"X-Request-Id": "ticket-7"})
        assert answer.headers["x-request-id"] == "ticket-7"
        (line,) = lines()
    assert line["ms"] >= 0 and line.pop("time").endswith("Z")
    del line["ms"]
    assert line == {
        "level": "info", "logger": "hypic_apps.server", "message": "request", "request_id": "ticket-7",
        "method": "GET", "route": "/v1/whose/{name}", "status": 200, "client": "testclient", "tenant": "acme",
        "key": key.id,
    }  # fmt: skip


INSANE = ["", "a b", "a\tb", "x" * 65, 'a"}', "é"]


@pytest.mark.parametrize("given", INSANE)
def test_an_id_that_is_none_is_replaced(tmp_path: Path, given: str) -> None:
    with client(make_service(tmp_path)) as http:
        made = [http.get("/health", headers={"X-Request-Id": given.encode()}).headers["x-request-id"] for _ in "ab"]
    assert made[0] != made[1] and all(len(one) == 32 for one in made)


def test_what_is_asked_every_few_seconds_is_quiet_and_unknown_paths_have_no_name(tmp_path: Path, lines: Any) -> None:
    with client(make_service(tmp_path)) as http:
        lines()
        http.get("/health")
        http.get("/metrics")
        http.get("/secret-path")
        http.request("BREW", "/v1/echo")
        http.get("/v1/echo")
        assert [(one["method"], one["route"], one["status"]) for one in lines()] == [
            ("GET", "unmatched", 404),
            ("other", "/v1/echo", 405),
            ("GET", "/v1/echo", 405),
        ]


def test_a_refused_request_has_its_route(tmp_path: Path, lines: Any) -> None:
    service = make_service(tmp_path)
    _, operators = service.keys.add(None)
    with client(service) as http:
        lines()
        http.get("/v1/whose/anybody")
        http.delete("/v1/collections/secret")
        http.get("/v1/whose/anybody", headers={"Authorization": f"Bearer {operators}"})
        http.get("/wp-login.php")
        assert [(one["route"], one["status"]) for one in lines()] == [
            ("/v1/whose/{name}", 401),
            ("/v1/collections/{name}", 401),
            ("/v1/whose/{name}", 403),
            ("unmatched", 401),
        ]


def test_what_the_page_asks_again_and_again_is_quiet_unless_it_changes_something(tmp_path: Path, lines: Any) -> None:
    with client(make_service(tmp_path)) as http:
        lines()
        http.get("/v1/collections")
        http.post("/v1/collections", json={"name": "papers"})
        http.get("/v1/collections/papers/files")
        http.get("/v1/collections/none/files")
        told = [(one["method"], one["route"], one["status"]) for one in lines()]
    files = "/v1/collections/{name}/files"
    assert told == [("POST", "/v1/collections", 201), ("GET", files, 404)]


def test_an_error_that_nobody_foresaw_is_a_500_with_the_id_and_does_not_quote(tmp_path: Path, lines: Any) -> None:
    with client(make_service(tmp_path)) as http:
        lines()
        answer = http.post("/v1/fail", content=DOCUMENT, headers={"X-Request-Id": "r1"})
        told, line = lines()
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error" and "r1" in answer.json()["error"]["message"]
    assert told["message"] == "internal error" and told["request_id"] == line["request_id"] == "r1"
    assert told["error"][0] == "ValueError" and any("in fail" in call for call in told["error"])
    assert DOCUMENT not in json.dumps([told, line]) and DOCUMENT not in answer.text


def test_an_answer_that_breaks_off_says_so(tmp_path: Path, lines: Any) -> None:
    with client(make_service(tmp_path)) as http:
        lines()
        http.get("/v1/broken-stream")
        told, line = lines()
    assert told["error"][0] == "KeyError" and line["status"] == 200 and line["cut_off"] is True
    assert "4711" not in json.dumps([told, line])


def test_what_is_wrong_with_the_machine_is_told_with_its_words(lines: Any) -> None:
    try:
        try:
            raise ValueError(DOCUMENT)
        except ValueError as cause:
            raise StoreDamaged("store.sqlite is damaged") from cause
    except StoreDamaged as error:
        assert api_error(error).status == 500
    (line,) = lines()
    assert line["error"][0] == "hypic_rag.errors.StoreDamaged: store.sqlite is damaged"
    assert "ValueError" in line["error"] and DOCUMENT not in json.dumps(line)


def test_fields_may_be_added_while_the_request_runs(tmp_path: Path, lines: Any) -> None:
    app = make_app(make_service(tmp_path))

    @app.get("/v1/tokens")
    async def tokens() -> None:
        logs.line()["prompt_tokens"] = 12

    with TestClient(app) as http:
        lines()
        http.get("/v1/tokens")
        (line,) = lines()
    assert line["prompt_tokens"] == 12
    logs.line()["nobody"] = "reads this"
    assert logs.line() == {}


def test_text_is_one_line_and_cannot_be_forged() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "request", (), None)
    record.fields = {"route": "/v1/{x}", "status": 200, "why": "two words\n2026 info forged"}
    text = logs.TextFormatter().format(record)
    assert text.endswith('info request route=/v1/{x} status=200 why="two words\\n2026 info forged"')
    record = logging.LogRecord("a", logging.INFO, "", 0, "one\ntwo", (), None)
    assert logs.TextFormatter().format(record).splitlines()[1] == "  two"


def test_a_traceback_in_text_is_indented() -> None:
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "bad", (), sys.exc_info())
    first, *rest = logs.TextFormatter().format(record).splitlines()
    assert first.endswith("error bad") and all(line.startswith("  ") for line in rest)
    assert "No space left on device" in rest[0]
