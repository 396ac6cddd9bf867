"""A file's text read back; what is cached now; what is not, cached again."""

import time

from collecting import Api, entries, text
from hypic_apps.server.app_state import Service


def test_a_files_text_is_read_back_in_its_order(api: Api) -> None:
    api.make()
    rows = "\n".join(f'{{"title": "Row {i}", "text": "{text(f"row{i}", 2)}"}}' for i in range(12))
    sent = api.ask("POST", "/notes/files", files=[("file", ("rows.jsonl", rows)), ("file", ("a.txt", "one\fpage two"))])
    many, pages = [file["id"] for file in sent.json()["data"]]
    api.until("ready", many)
    api.until("ready", pages)
    found = api.ask("GET", f"/notes/files/{many}/passages").json()
    assert (found["filename"], found["total"]) == ("rows.jsonl", len(found["data"]))
    titles = [one["title"] for one in found["data"]]
    assert list(dict.fromkeys(titles)) == [f"Row {i}" for i in range(12)]  # the eleventh after the tenth
    assert "row11" in found["data"][-1]["text"] and found["data"][-1]["document"] == 11
    part = api.ask("GET", f"/notes/files/{many}/passages", params={"offset": 2, "limit": 3}).json()["data"]
    assert part == found["data"][2:5]
    assert [one["page_label"] for one in api.ask("GET", f"/notes/files/{pages}/passages").json()["data"]] == ["1–2"]
    assert api.ask("GET", "/notes/files/none/passages").status_code == 404


def test_what_is_cached_now_is_told_and_what_is_not_is_cached_again(api: Api, service: Service) -> None:
    api.make()
    a, b = api.send(a=text("harbour"), b=text("violin"))
    n = {file_id: api.until("ready", file_id)["n_segments"] for file_id in (a, b)}

    def cached() -> dict[str, tuple[int, int]]:
        told = api.ask("GET", "/notes/cached").json()
        return {one["file_id"]: (one["n_cached"], one["n_segments"]) for one in told["data"]}

    assert cached() == {a: (n[a], n[a]), b: (n[b], n[b])}
    [lost, *_] = sorted(entries(service, api.namespace()))
    service.engine.within(api.namespace()).forget([lost])
    assert sorted(cached().values()) != sorted((n[one], n[one]) for one in (a, b))
    assert sum(now for now, _ in cached().values()) == n[a] + n[b] - 1
    assert api.ask("POST", "/notes/warm").json()["is_warming"] is True
    until = time.monotonic() + 30
    while api.ask("GET", "/notes/cached").json()["is_warming"]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert cached() == {a: (n[a], n[a]), b: (n[b], n[b])}
    assert lost in entries(service, api.namespace())


def test_deleting_ends_the_warming_and_leaves_nothing_of_it(api: Api, service: Service) -> None:
    api.make()
    [one] = api.send(a=text("glacier", 200))
    api.until("ready", one)
    namespace = api.namespace()
    service.engine.within(namespace).forget(entries(service, namespace))
    assert api.ask("POST", "/notes/warm").status_code == 202
    assert api.delete("/notes").status_code == 200
    assert namespace not in service.collections.warming
    assert entries(service, namespace) == set()


def test_an_empty_collection_has_nothing_to_warm(api: Api) -> None:
    api.make()
    assert api.ask("POST", "/notes/warm").json()["is_warming"] is False
    assert api.ask("GET", "/notes/cached").json()["data"] == []
    assert api.ask("GET", "/nothing/cached").status_code == 404
