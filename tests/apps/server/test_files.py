"""Uploads: streamed, limited, labelled; and the files' way from queued to ready or failed."""

import json
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from collecting import Api, entries, make_service, serving, text
from hostile import pdf
from hypic_apps.server.app_state import Service
from hypic_apps.server.ingestion import uploads, worker
from hypic_apps.server.ingestion.uploads import label

from hypic_rag.engine import Sampling

LIMIT = 300_000
HARD: Any = {"max_upload": LIMIT, "max_characters": 50_000, "parse_memory": 2**29, "parse_seconds": 20}
numbers = count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return make_service(tmp_path_factory.mktemp("server"), **HARD)


@pytest.fixture(scope="module")
def everybody(service: Service) -> Iterator[Api]:
    with serving(service) as asked:
        yield asked


@pytest.fixture
def api(everybody: Api) -> Api:
    """A tenant of the test's own, with a collection."""
    mine = everybody.of(f"t{next(numbers)}")
    mine.make()
    return mine


def stored(service: Service) -> list[Path]:
    """What lies there; of a file that is ready or failed the bytes go a moment later."""
    for _ in range(50):
        if not (left := list((service.folder / "uploads").iterdir())):
            break
        time.sleep(0.02)
    return left


LABELS = {  # sent, shown
    "plain": ("report.pdf", "report.pdf"),
    "a path": ("../../etc/passwd.txt", "passwd.txt"),
    "a Windows path": ("C:\\docs\\a.md", "a.md"),
    "NUL": ("a\0.txt", "a.txt"),
    "right to left": ("fdp\u202e.txt", "fdp.txt"),
    "decomposed": ("e\u0301.txt", "é.txt"),
    "long": ("x" * 5000 + ".txt", "x" * 196 + ".txt"),
    "line ends": ("a\r\nb.txt", "ab.txt"),
    "tab": ("a\tb.txt", "ab.txt"),
}


@pytest.mark.parametrize("sent, shown", LABELS.values(), ids=LABELS)
def test_a_name_is_a_label(sent: str, shown: str) -> None:
    assert label(sent) == shown


def body(api: Api, filename: str, content: bytes, name: str = "file") -> dict[str, Any]:
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'.encode()
    return {
        "content": head + content + b"\r\n--edge--\r\n",
        "headers": {"content-type": "multipart/form-data; boundary=edge", **api.headers},
    }


@pytest.mark.parametrize("filename", ["../../../up.txt", "/etc/up.txt", "..\\up.txt", "up\u2066.txt"])
def test_no_name_leads_out_of_the_folder(api: Api, service: Service, filename: str) -> None:
    around = service.folder.parent
    before = {path for path in around.rglob("*") if "segments" not in path.parts}
    sent = api.client.post("/v1/collections/notes/files", **body(api, filename, text("up").encode()))
    assert sent.status_code == 202
    [file] = sent.json()["data"]
    assert file["filename"] == "up.txt"
    new = {path for path in around.rglob("*") if "segments" not in path.parts} - before
    assert all(path.is_relative_to(service.folder) for path in new) and not any(path.stem == "up" for path in new)
    api.until("ready", file["id"])


REFUSED = {  # filename, content, name of the part; status, words of the message
    "kind": ("a.doc", b"x", "file", 415, "of no kind"),
    "no kind": ("txt", b"x", "file", 415, "of no kind"),
    "hidden kind": ("a.txt/b.exe", b"x", "file", 415, "of no kind"),
    "too large": ("a.txt", b"x" * (LIMIT + 1), "file", 413, "larger than 300.0 kB"),
    "zip": ("bomb.zip", b"PK\3\4", "file", 415, "of no kind"),
    "other part": ("a.txt", b"x", "upload", 400, 'named "file"'),
    "long headers": ("x" * 10_000 + ".txt", b"x", "file", 400, ""),
}


@pytest.mark.parametrize("filename, content, part, status, words", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(
    api: Api, service: Service, filename: str, content: bytes, part: str, status: int, words: str
) -> None:
    refused = api.client.post("/v1/collections/notes/files", **body(api, filename, content, part))
    assert refused.status_code == status and words in refused.json()["error"]["message"]
    assert stored(service) == [] and api.ask("GET", "/notes/files").json()["data"] == []


def test_all_files_of_a_request_or_none(api: Api, service: Service) -> None:
    files = [("file", ("a.txt", "a")), ("file", ("b.exe", "b"))]
    assert api.ask("POST", "/notes/files", files=files).status_code == 415
    assert stored(service) == [] and api.ask("GET", "/notes/files").json()["data"] == []


def test_a_size_is_enforced_while_it_streams(api: Api, service: Service) -> None:
    n_sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal n_sent
        yield body(api, "a.txt", b"")["content"].removesuffix(b"\r\n--edge--\r\n")
        while n_sent < 100 * LIMIT:
            n_sent += 1000
            yield b"x" * 1000

    headers = body(api, "a.txt", b"")["headers"]
    assert api.client.post("/v1/collections/notes/files", content=chunks(), headers=headers).status_code == 413
    assert stored(service) == []


def test_no_form_no_file_and_a_form_cut_short(api: Api, service: Service) -> None:
    whole = body(api, "a.txt", b"text " * 100)
    for sent, status in (
        ({"json": {"file": "a"}, "headers": api.headers}, 415),
        ({"content": b"", "headers": {"content-type": "multipart/form-data", **api.headers}}, 415),
        ({**whole, "content": whole["content"][:-10]}, 400),
        ({**whole, "content": b"nonsense"}, 400),
        ({**whole, "content": b"--edge--\r\n"}, 400),
        ({"data": {"note": "x"}, "files": {}, "headers": api.headers}, 415),
    ):
        refused = api.client.post("/v1/collections/notes/files", **sent)
        assert refused.status_code == status, (sent, refused.text)
        assert refused.json()["error"]["message"]
    assert stored(service) == []


def test_a_full_disk_is_told_and_nothing_is_left(api: Api, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(uploads.os, "fsync", full)
        refused = api.ask("POST", "/notes/files", files=[("file", ("a.txt", "a"))])
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "insufficient_storage")
    with monkeypatch.context() as patch:
        patch.setattr(uploads, "SPARE_DISK", 2**62)
        refused = api.ask("POST", "/notes/files", files=[("file", ("a.txt", "a"))])
    assert refused.status_code == 507 and "nearly full" in refused.json()["error"]["message"]
    assert stored(service) == [] and api.ask("GET", "/notes/files").json()["data"] == []


FAILING = {  # filename, content; words of the reason
    "empty": ("a.txt", b"", "is empty"),
    "blank": ("a.md", b" \n\n", "is empty"),
    "binary": ("a.txt", bytes(range(256)) * 4, "binary file"),
    "another kind than its name says": ("a.txt", b"PK\3\4" + bytes(100), "binary file"),
    "cut short": ("a.txt", b"\xff\xfea\0b", "utf-16"),
    "PDF that grows": ("a.pdf", pdf(b"BT /F 12 Tf 1 1 Td (aaaaaaaaaa) Tj ET\n" * 2_000_000), ""),
    "a long line": ("a.txt", b"x" * 200_000, "50,000 characters"),
    "no PDF": ("a.pdf", b"%PDF-1.4 nothing", "not a readable PDF"),
    "no JSON": ("a.jsonl", b"{]\n", "line 1: is not JSON"),
}


@pytest.mark.parametrize("filename, content, words", FAILING.values(), ids=FAILING)
def test_a_file_that_gives_nothing_fails_with_a_reason(
    api: Api, service: Service, filename: str, content: bytes, words: str
) -> None:
    sent = api.client.post("/v1/collections/notes/files", **body(api, filename, content))
    [file] = sent.json()["data"]
    failed = api.until("failed", file["id"])
    assert failed["error"] and words in failed["error"] and str(service.folder) not in failed["error"]
    assert api.client.get("/health").status_code == 200
    assert stored(service) == []
    assert api.ask("GET", "/notes").json()["status"] == "ready"
    assert api.delete(f"/notes/files/{file['id']}").status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"x" * 45_000, "Viele Grüße aus dem Tal, in dem nichts geschieht. ".encode("cp1252")],
    ids=["a long line", "cp1252"],
)
def test_what_can_be_read_is(api: Api, content: bytes) -> None:
    """Whatever its part of the form says that it is."""
    sent = body(api, "a.txt", content)
    sent["content"] = sent["content"].replace(b"\r\n\r\n", b"\r\nContent-Type: image/png\r\n\r\n", 1)
    [file] = api.client.post("/v1/collections/notes/files", **sent).json()["data"]
    assert api.until("ready", file["id"])["n_chunks"] > 0


def test_rows_that_cannot_be_read_are_named_and_the_others_are_there(api: Api) -> None:
    rows = [{"title": "One", "text": "The first.", "file_id": "x", "path": "/etc"}, {"no": "text"}, {"text": "Third."}]
    lines = "\n".join(map(json.dumps, rows)).encode()
    [file] = api.client.post("/v1/collections/notes/files", **body(api, "a.jsonl", lines)).json()["data"]
    ready = api.until("ready", file["id"])
    assert "line 2" in ready["error"] and ready["n_documents"] == 2
    found = api.found("first")
    assert {one["file_id"] for one in found} == {file["id"]} and found[0]["title"] == "One"


def test_a_disk_that_fails_in_the_middle_fails_the_file_whole(
    api: Api, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hypic_rag.retrieval.store import Store

    swap, calls = Store.swap_document, []

    def full(self: Store, *rest: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise uploads.NoRoom("store.sqlite: database or disk is full")
        return swap(self, *rest)

    monkeypatch.setattr(Store, "swap_document", full)
    rows = "\n".join(json.dumps({"text": text(f"row {i}", 2)}) for i in range(5)).encode()
    [file] = api.client.post("/v1/collections/notes/files", **body(api, "a.jsonl", rows)).json()["data"]
    failed = api.until("failed", file["id"])
    assert "disk is full" in failed["error"] and failed["n_chunks"] == 0
    assert api.found("row") == []
    assert entries(service, api.namespace()) == set()


def test_tenants_take_turns(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server", delay=0.02)
    with serving(service) as api, pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "WORKERS", 1)
        many, few = api.of("many"), api.of("few")
        many.make(), few.make()
        sent = [many.send(**{f"n{i}": text(f"n{i}", 24)})[0] for i in range(4)]
        [one] = few.send(one=text("one"))
        few.until("ready", one)
        assert sum(many.file(file)["status"] == "ready" for file in sent) < 3
        for file in sent:
            many.until("ready", file)
    service.database.close()


def test_a_large_file_does_not_hold_up_a_small_one_nor_a_question(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server")
    with serving(service) as api:
        api.make(), api.of("other").make()
        engine = service.engine.within("asks/")
        prompt = engine.format.prompt("Who?", [("", text("question", 3))])
        engine.generate(prompt, Sampling(1))
        [large] = api.send(large=" ".join(text(f"part {i}", 12) for i in range(90)))
        api.until("prefilling", large)
        [small] = api.of("other").send(small=text("small"))
        waits, healths = [], []
        for _ in range(5):
            began = time.monotonic()
            assert api.client.get("/health").status_code == 200
            api.file(large)
            healths.append(time.monotonic() - began)
            began = time.monotonic()
            engine.generate(prompt, Sampling(1))
            waits.append(time.monotonic() - began)
            time.sleep(0.1)
        assert median(waits) < 4 * worker.BITE_SECONDS, waits
        assert median(healths) < 0.5, healths
        api.of("other").until("ready", small)
        assert api.file(large)["status"] == "prefilling"  # it still was
        assert api.delete("/notes").status_code == 200
    service.database.close()


def test_a_turn_is_refused_to_who_was_stopped() -> None:
    stopped = threading.Event()
    turns = worker.IngestTurns(lambda: True)
    with turns.turn(stopped):
        stopped.set()
    with pytest.raises(worker.Stopped), turns.turn(stopped):
        pass


@pytest.mark.parametrize("n", [0, 1, worker.PART_CHARACTERS, worker.PART_CHARACTERS + 1, 3 * worker.PART_CHARACTERS])
@pytest.mark.parametrize("unit", ["x", "a word. ", "line\n\n"])
def test_the_parts_of_a_text_are_all_of_it(n: int, unit: str) -> None:
    whole = (unit * n)[:n]
    made = list(worker.parts(whole))
    assert "".join(made) == whole and all(0 < len(part) <= worker.PART_CHARACTERS for part in made)
