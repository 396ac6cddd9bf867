"""Collections: what is sent is found, tenants are apart, what is deleted leaves no trace."""

import shutil
import time
from pathlib import Path

import pytest
from collecting import SECRET, Api, check_database, entries, kept, make_service, serving, text
from hypic_apps.server.app_state import Service
from hypic_apps.server.collections import catalog as module
from hypic_apps.server.collections import deletion

from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.collections.tenant import Tenant
from hypic_rag.engine import Sampling
from hypic_rag.errors import BadInput, NoRoom, StoreDamaged


def test_what_is_sent_is_prefilled_and_found(api: Api, service: Service) -> None:
    made = api.make()
    assert (made["object"], made["name"], made["status"], made["n_files"]) == ("collection", "notes", "ready", 0)

    a, b = api.send(harbour=text("harbour"), violin_care=text("violin"))
    files = [api.until("ready", a), api.until("ready", b)]

    for file in files:
        assert file["error"] is None and file["n_documents"] == 1
        assert file["n_chunks"] == file["n_segments"] == file["n_prefilled"] > 1
        assert file["tokens_done"] == file["tokens_total"] > 0
    [best, *_] = api.found("violin matters")
    assert (
        best["file_id"] == b and best["title"] == "violin care" and "violin" in best["text"] and best["similarity"] > 0
    )
    seen = api.ask("GET", "/notes").json()
    assert (seen["status"], seen["n_files"], seen["n_documents"]) == ("ready", 2, 2)
    assert seen["n_chunks"] == files[0]["n_chunks"] + files[1]["n_chunks"]
    assert seen["bytes"] > 0
    assert seen["progress"]["n_done"] == seen["progress"]["n_total"] == 2
    assert [one["name"] for one in api.ask("GET", "").json()["data"]] == ["notes"]
    assert not list((service.folder / "uploads").glob("*.parsed"))


def test_uploads_and_what_becomes_of_them_are_counted(api: Api, service: Service) -> None:
    def counted(name: str, **labels: str) -> float:
        return service.metrics.registry.get_sample_value(f"hypic_{name}_total", labels) or 0.0

    names = ("uploads", "upload_bytes", "ingest_prefill_tokens", "ingest_segments")
    before = [counted(name) for name in names]
    ready, failed = (counted("ingested_files", outcome=name) for name in ("ready", "failed"))
    api.make()
    good, bad = api.send(good=text("counting"), bad=" ")
    file = api.until("ready", good)
    api.until("failed", bad)
    assert api.ask("GET", "/notes").json()["progress"] | {"tokens_done": 0, "tokens_total": 0} == {
        "n_done": 2, "n_failed": 1, "n_total": 2, "tokens_done": 0, "tokens_total": 0,
    }  # fmt: skip
    sizes = len(text("counting")) + 1
    assert [counted(name) - n for name, n in zip(names, before, strict=True)] == [
        2, sizes, file["tokens_total"], file["n_prefilled"],
    ]  # fmt: skip
    for outcome, n in (("ready", ready), ("failed", failed)):
        for _ in range(100):  # a moment after its status
            if counted("ingested_files", outcome=outcome) == n + 1:
                break
            time.sleep(0.02)
        assert counted("ingested_files", outcome=outcome) == n + 1


def test_what_is_found_is_told_with_its_page(api: Api) -> None:
    api.make()
    [paged] = api.send(report="\f".join((text("harbour"), text("violin"), text("glacier"))))
    api.until("ready", paged)
    for subject, page in (("harbour", "1"), ("glacier", "3")):
        [best, *_] = api.found(f"{subject} matters")
        assert subject in best["text"] and page in best["page_label"].split("–")
    [bare] = api.send(bare=text("orchard"))
    api.until("ready", bare)
    assert api.found("orchard matters")[0]["page_label"] is None


def test_an_answer_uses_the_segments_of_the_namespace(api: Api, service: Service) -> None:
    api.make()
    api.until("ready", *api.send(harbour=text("harbour")))
    found = service.collections.retriever(api.tenant, "notes")
    assert found.namespace == api.namespace()
    sources = found.retrieve("harbour", 2)
    assert [one.metadata["filename"] for one in sources] == ["harbour.txt"] * 2

    engine = service.engine.within(found.namespace)
    prompt = engine.format.prompt("What?", [(source.title, source.text) for source in sources])
    report = engine.generate(prompt, Sampling(1)).report

    assert [use.tier for use in report.segments] == ["host", "host"]
    assert service.engine.generate(prompt, Sampling(1)).report.n_from_cache == 0  # in another namespace


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "a b", "x" * 65, "é", "a\n", "a\0"])
def test_a_name_that_cannot_be_one_is_refused(api: Api, name: str) -> None:
    refused = api.ask("POST", "", json={"name": name})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "name"


def test_what_is_not_there(api: Api) -> None:
    api.make()
    for method, path in [
        ("GET", "/other"),
        ("DELETE", "/other"),
        ("GET", "/other/files"),
        ("GET", "/other/search?q=a"),
    ]:
        missing = api.ask(method, path)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "collection_not_found"), path
    for method in ("GET", "DELETE"):
        missing = api.ask(method, "/notes/files/file-1")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "file_not_found")
    again = api.ask("POST", "", json={"name": "notes"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "collection_exists")
    assert api.found("anything") == []
    assert api.ask("GET", "/notes/search?q=%20").status_code == 400
    assert api.ask("GET", "/notes/search?q=a&k=0").status_code == 400


def test_tenants_with_equal_names_and_files_do_not_meet(api: Api, service: Service) -> None:
    ours, theirs = api.of("ours"), api.of("theirs")
    ids = []
    for one in (ours, theirs):
        made = one.make()
        [file] = one.send(harbour=text("harbour"), **({"extra": text("extra")} if one is theirs else {}))[:1]
        one.until("ready", file)
        ids.append((made["id"], file))
    assert ids[0] != ids[1]
    assert theirs.ask("GET", f"/notes/files/{ids[0][1]}").status_code == 404
    assert theirs.delete(f"/notes/files/{ids[0][1]}").status_code == 404
    assert {one["file_id"] for one in ours.found("harbour")} == {ids[0][1]}
    theirs_before = entries(service, f"theirs/{ids[1][0]}")

    assert ours.delete("/notes").json() == {"id": ids[0][0], "object": "collection", "deleted": True}

    assert ours.ask("GET", "/notes").status_code == 404
    assert entries(service, f"ours/{ids[0][0]}") == set()
    assert theirs_before and theirs_before <= entries(service, f"theirs/{ids[1][0]}")
    assert ids[1][1] in {one["file_id"] for one in theirs.found("harbour")}
    check_database(service.folder)


def test_a_deleted_file_leaves_no_trace_and_its_neighbours_stay(api: Api, service: Service) -> None:
    api.make()
    namespace = api.namespace()
    shared = text("harbour", 4)  # a chunk that both files have
    a, b = api.send(secret=f"{text('quay')}\n\n{SECRET}", other=shared)
    [twin] = api.send(other=shared)
    for file in (a, b, twin):
        api.until("ready", file)
    assert kept(service.folder, "quicksilver")
    before = entries(service, namespace)
    asked = service.engine.within(namespace)
    asked.generate(asked.format.prompt("Who?", [("", SECRET)]), Sampling(2))
    assert any(key[0] == namespace for key in service.engine.conversations._held)

    assert api.delete(f"/notes/files/{a}").json() == {"id": a, "object": "file", "deleted": True}
    assert api.delete(f"/notes/files/{twin}").status_code == 200

    assert kept(service.folder, "quicksilver") == []
    assert not any(key[0] == namespace for key in service.engine.conversations._held)
    assert api.ask("GET", f"/notes/files/{a}").status_code == 404
    assert {one["file_id"] for one in api.found("quicksilver harbour quay")} == {b}
    left = entries(service, namespace) & before
    assert left and left < before
    chunks = [(one["title"], one["text"]) for one in api.found("harbour", k=50)]
    keys = {asked.segment_key(asked.format.document(body, title)).digest for title, body in chunks}
    assert keys <= left  # what both had is still there for the one
    check_database(service.folder)


def test_deleting_what_is_being_ingested(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server", delay=0.05)
    with serving(service) as api:
        made = api.make()
        a, b = api.send(long=f"{SECRET} {text('long', 400)}", next=text("next"))
        deadline = time.monotonic() + 60
        while not (len(entries(service, f"local/{made['id']}")) or api.file(a)["status"] == "prefilling"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert api.delete(f"/notes/files/{a}").status_code == 200
        api.until("ready", b)
        chunks = {(one["title"], one["text"]) for one in api.found("next", k=100)}
        engine = service.engine.within(f"local/{made['id']}")
        keys = {engine.segment_key(engine.format.document(body, title)).digest for title, body in chunks}
        leading = engine.segment_key(engine.format.leading(), "leading").digest
        assert entries(service, engine.namespace) <= keys | {leading}
        assert kept(service.folder, "quicksilver") == []

        [again] = api.send(long=f"{SECRET} {text('long', 400)}")
        api.until("prefilling", again)
        assert api.delete("/notes").status_code == 200
        assert entries(service, engine.namespace) == set()
        assert kept(service.folder, "quicksilver") == []
        assert list((service.folder / "collections").rglob("*.sqlite")) == []
        assert list((service.folder / "uploads").iterdir()) == []


def test_what_a_request_under_way_makes_again_is_swept(
    api: Api, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "LINGER_SECONDS", 0.2)
    api.make()
    engine = service.engine.within(api.namespace())
    [a] = api.send(secret=f"{SECRET} {text('secret')}")
    api.until("ready", a)
    sources = service.collections.retriever(api.tenant, "notes").retrieve("password", 3)
    assert api.delete(f"/notes/files/{a}").status_code == 200
    prompt = engine.format.prompt("Who?", [(source.title, source.text) for source in sources])
    engine.generate(prompt, Sampling(2))  # it had its texts before
    held = {engine.segment_key(ids).digest for ids in prompt.documents}
    assert held <= entries(service, engine.namespace)

    time.sleep(0.3)
    service.collections.removal.sweep()

    assert not held & entries(service, engine.namespace)
    assert not any(key[0] == engine.namespace for key in service.engine.conversations._held)


def test_removal_goes_on_where_a_server_was_killed(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server")
    with serving(service) as api:
        api.make(), api.make("other")
        for name in ("notes", "other"):
            [file] = api.send(name, secret=f"{SECRET} {text('secret')}")
            api.until("ready", file, name)
        with service.database.writing() as db:
            db.execute("UPDATE files SET status = 'deleting' WHERE id = ?", (file,))
            db.execute("UPDATE collections SET deleting = 1 WHERE name = 'notes'")
        namespaces = list(service.engine.cache.disk.by_namespace())  # type: ignore[union-attr]
        (service.folder / "uploads" / "file-0.part").write_text(SECRET)
    service.database.close()

    service = make_service(tmp_path / "server")
    with serving(service) as api:
        assert [one["name"] for one in api.ask("GET", "").json()["data"]] == ["other"]
        assert api.ask("GET", "/other/files").json()["data"] == []
        assert kept(service.folder, "quicksilver") == []
        assert all(len(entries(service, one)) <= 1 for one in namespaces)  # the system text, of the one that is left
        check_database(service.folder)
    service.database.close()


def test_collections_that_an_older_database_does_not_know_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = tmp_path / "server" / "collections" / "local" / "col-0" / "store.json"
    service = make_service(tmp_path / "server")
    with serving(service):
        service.collections.create(Tenant("local"), "known")
    service.database.close()
    stranger.parent.mkdir(parents=True)
    stranger.write_text("{}")
    service = make_service(tmp_path / "server")
    with serving(service):
        pass
    service.database.close()
    assert stranger.exists() and "col-0 is a collection that server.sqlite does not know" in caplog.text


def test_a_removal_that_fails_is_hidden_and_goes_on_later(
    api: Api, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.make()
    [a] = api.send(secret=f"{SECRET} {text('secret')}")
    api.until("ready", a)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", full)
        refused = api.delete("/notes")
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "insufficient_storage")
    assert "No space left" in refused.json()["error"]["message"]
    assert api.ask("GET", "/notes").status_code == 404

    service.collections.removal.again()
    assert kept(service.folder, "quicksilver") == []


def test_one_server_a_folder(service: Service, api: Api) -> None:
    other = module.Collections(
        service.settings, service.folder, service.engine, service.embedder, service.loop, service.database,
        service.metrics,
    )  # fmt: skip
    with pytest.raises(BadInput, match="another hypic-rag serve"):
        other.start()


def test_a_collection_of_another_model_says_so_and_can_be_deleted(tmp_path: Path) -> None:
    service = make_service(tmp_path / "server")
    with serving(service) as api:
        api.make()
        [a] = api.send(secret=SECRET)
        api.until("ready", a)
    service.database.close()
    service = make_service(tmp_path / "server")
    service.engine.fingerprint = "another"
    with serving(service) as api:
        for refused in (api.ask("GET", "/notes/search?q=a"), api.delete(f"/notes/files/{a}")):
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "collection_mismatch")
        assert api.file(a)["status"] == "ready"
        assert api.delete("/notes").status_code == 200
        assert kept(service.folder, "quicksilver") == []
    service.database.close()


def test_collections_that_the_database_does_not_know_are_not_deleted(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    with serving(service) as api:
        api.make()
        api.until("ready", api.send(harbour=text("harbour"))[0])
    service.database.close()
    (tmp_path / "server.sqlite").rename(tmp_path / "aside")
    with pytest.raises(StoreDamaged, match=r"has 1 collections, but server\.sqlite knows none"):
        make_service(tmp_path)
    for left in tmp_path.glob("server.sqlite*"):
        left.unlink()
    (tmp_path / "aside").rename(tmp_path / "server.sqlite")
    service = make_service(tmp_path)
    with serving(service) as api:
        assert api.found("harbour matters")
    service.database.close()


def test_a_database_that_takes_no_more(tmp_path: Path) -> None:
    database = CollectionDatabase(tmp_path / "server.sqlite")
    cursor = database.connection.cursor()
    cursor.row_factory = None  # no column of ours
    cursor.execute("PRAGMA max_page_count = 20").fetchall()
    with pytest.raises(NoRoom, match="full"), database.writing() as db:
        db.execute("INSERT INTO collections VALUES ('a', 'local', ?, 1, 0)", ("x" * 200_000,))
    with database.reading() as db:
        assert db.execute("SELECT count(*) FROM collections").fetchone()[0] == 0
    database.close()
    check_database(tmp_path)


def test_a_disk_budget_that_is_too_small_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = make_service(tmp_path / "server")
    assert service.engine.cache.disk is not None
    service.engine.cache.disk.budget = 1000
    with serving(service) as api:
        api.make()
        (file,) = api.send(harbour=text("harbour"))
        api.until("ready", file)
    assert "1.0 kB are left of disk_budget" in caplog.text and "Set a larger disk_budget" in caplog.text
