"""Conversations on the server: kept by tenant, found by words, and without the passages of deleted files."""

from typing import Any

import pytest
from collecting import SECRET, Api, kept, text
from hypic_apps.server.app_state import Service


def chats(api: Api, method: str, path: str = "", status: int = 200, **options: Any) -> Any:
    answer = api.client.request(method, f"/v1/chats{path}", headers=api.headers, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


def begun(api: Api, title: str, collection: str | None = None) -> str:
    return str(chats(api, "POST", status=201, json={"title": title, "collection": collection})["id"])


def run(text: str, *documents: dict[str, Any], **more: Any) -> dict[str, Any]:
    whole = {"mode": None, "state": "done", "text": text, "finish": "stop", "error": None, "hypic": {"ms": {"ttft": 2}}}
    return {**whole, "documents": list(documents), **more}


def test_a_conversation_is_kept_renamed_found_and_deleted(api: Api) -> None:
    first, second = begun(api, "The  lighthouse\n of Porto Vells"), begun(api, "Harvest")
    turns = [
        {"question": "Who BUILT it?", "runs": [run("Ada Märrow."), run("Ada.", mode="full", state="stopped")]},
        {"question": "When?", "runs": [run("", state="failed", error="no room")]},
    ]
    for i, turn in enumerate(turns):
        chats(api, "PUT", f"/{first}/turns/{i}", json=turn)
    assert chats(api, "GET", f"/{first}")["turns"] == turns
    chats(api, "PUT", f"/{first}/turns/1", json=turns[0])  # asked again
    assert chats(api, "GET", f"/{first}")["turns"] == [turns[0], turns[0]]

    listed = chats(api, "GET")["data"]
    assert [(one["title"], one["n_turns"], one["collection"]) for one in listed] == [
        ("The lighthouse of Porto Vells", 2, None), ("Harvest", 0, None),
    ]  # fmt: skip
    for query, ids in {
        "built mÄRR": [first],
        "porto who": [first],
        "harv": [second],
        "100%": [],
        "": [first, second],
    }.items():
        assert [one["id"] for one in chats(api, "GET", params={"q": query})["data"]] == ids, query
    assert chats(api, "GET", params={"limit": 1})["data"] == listed[:1]

    assert chats(api, "POST", f"/{second}", json={"title": "Fair"})["title"] == "Fair"
    assert [one["id"] for one in chats(api, "GET", params={"q": "fair"})["data"]] == [second]
    chats(api, "DELETE", f"/{second}")
    chats(api, "GET", f"/{second}", status=404)
    assert chats(api, "DELETE")["n_deleted"] == 1
    assert chats(api, "GET")["data"] == []


def test_a_file_takes_its_passages_out_of_conversations(api: Api, service: Service) -> None:
    api.make()
    stays, goes = api.send(a=text("harbour"), b=SECRET)
    api.until("ready", stays)
    api.until("ready", goes)
    chat = begun(api, "Passwords", "notes")
    passages = [{"file_id": file_id, "text": f"{told} {SECRET}"} for file_id, told in ((stays, "one"), (goes, "two"))]
    foreign = {"file_id": "file-of-nobody", "text": "three"}
    chats(api, "PUT", f"/{chat}/turns/0", json={"question": "What?", "runs": [run("None.", *passages, foreign)]})

    def documents() -> list[Any]:
        return chats(api, "GET", f"/{chat}")["turns"][0]["runs"][0]["documents"]

    assert documents() == [*passages, None]  # of no file that is the tenant's
    assert api.delete(f"/notes/files/{goes}").status_code == 200
    assert documents() == [passages[0], None, None]
    assert api.delete("/notes").status_code == 200
    assert documents() == [None, None, None]
    assert chats(api, "GET", f"/{chat}")["collection"] == "notes"
    assert kept(service.folder, SECRET) == []


JSON = {"content-type": "application/json"}
WRONG: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "another's": ("GET", "/conv-0", {}, 404),
    "no turn before it": ("PUT", "/{}/turns/1", {"json": {"question": "q", "runs": [run("a")]}}, 409),
    "below zero": ("PUT", "/{}/turns/-1", {"json": {"question": "q", "runs": [run("a")]}}, 400),
    "no answer": ("PUT", "/{}/turns/0", {"json": {"question": "q", "runs": []}}, 400),
    "no number": ("PUT", "/{}/turns/0", {"content": b'{"question":"","runs": [{"state": "done", "hypic": {"": NaN}}]}',
                                         "headers": JSON}, 400),
    "no title": ("POST", "/{}", {"json": {"title": " \n"}}, 400),
    "no such collection": ("POST", "", {"json": {"title": "t", "collection": "nothing"}}, 404),
}  # fmt: skip


@pytest.mark.parametrize("method, path, options, status", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(api: Api, method: str, path: str, options: dict[str, Any], status: int) -> None:
    chat = begun(api, "Mine")
    headers = {**api.headers, **options.pop("headers", {})} if "headers" in options else api.headers
    answer = api.client.request(method, "/v1/chats" + path.format(chat), headers=headers, **options)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_tenants_are_apart(api: Api, everybody: Api) -> None:
    chat = begun(api, "Mine")
    other = everybody.of("another")
    assert chats(other, "GET")["data"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "")):
        chats(other, method, f"/{chat}{path}", status=404, **({"json": {"title": "x"}} if method == "POST" else {}))
    chats(other, "PUT", f"/{chat}/turns/0", status=404, json={"question": "q", "runs": [run("a")]})
    assert chats(other, "DELETE")["n_deleted"] == 0
    assert [one["title"] for one in chats(api, "GET")["data"]] == ["Mine"]


def test_half_characters_come_back_as_what_can_be_sent(api: Api) -> None:
    chat = begun(api, "Mine")
    body = b'{"question": "a\\ud800b", "runs": [{"state": "done", "text": "\\ud800", "hypic": {"x": "\\udfff"}}]}'
    sent = {"headers": {**api.headers, "content-type": "application/json"}, "content": body}
    assert api.client.put(f"/v1/chats/{chat}/turns/0", **sent).status_code == 200
    assert chats(api, "GET", f"/{chat}")["turns"][0]["question"].startswith("a")
