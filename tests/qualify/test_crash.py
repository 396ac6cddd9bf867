"""hypic-qualify crash: what it takes for broken, and a real server that is killed."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypic_eval.rows import RowFile
from hypic_eval.table import markdown
from hypic_qualify import crash
from hypic_qualify.durability_log import Broken, DurabilityLog, File, check
from hypic_qualify.folder import check_databases, check_nothing_left_over, check_remote, under_way
from hypic_qualify.process import NoServer, started

from hypic_rag.cache import SegmentCache
from hypic_rag.cache.record import Record
from hypic_rag.collections.database import CollectionDatabase


def test_a_server_is_killed_and_keeps_what_it_has_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowFile(tmp_path / "rows.jsonl")
    results = crash.run_crash(tmp_path, 1, 1, rows)
    assert results.samples["broken"] == [] and not results.missed_goals
    assert "| killed at any moment | 1 | 0 (goal ≤ 0: met) |" in markdown(results)
    monkeypatch.setattr(crash, "kill_each", lambda *_: pytest.fail("kills that were made are made again"))
    assert crash.run_crash(tmp_path, 1, 1, RowFile(rows.path)).rows == results.rows


def test_a_broken_promise_is_noted_and_the_next_kill_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = []

    @contextlib.contextmanager
    def started(home: Path, **options: Any) -> Iterator[Any]:
        homes.append(home.name)
        yield SimpleNamespace(url="http://127.0.0.1:1")

    def check(api: Any, promises: DurabilityLog, wait: bool) -> None:
        if homes == ["home-0"] * 2:
            raise Broken("a file is gone")

    for name, stand_in in {
        "started": started,
        "check": check,
        "make": lambda folder: folder,
        "check_nothing_left_over": lambda *_: None,
        "use_and_kill": lambda server, promises, number, seed: {
            "number": number,
            "began": 0.0,
            "moment_s": 1.0,
            "counts": {"files": 1},
            "under_way": ["asking"],
        },
    }.items():
        monkeypatch.setattr(crash, name, stand_in)
    results = crash.run_crash(tmp_path, 3)
    assert homes == ["home-0", "home-0", "home-1", "home-1", "home-1"]
    assert results.samples["broken"] == ["after kill 1: a file is gone"]
    assert [row.value for row in results.missed_goals] == [1]
    assert {row.metric: row.value for row in results.rows}["asking"] == 3


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="max-running"), started(tmp_path, "--max-running", "0"):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a server leaves it that has one collection with one file."""
    database = CollectionDatabase(tmp_path / "server.sqlite")
    with database.writing() as db:
        db.execute("INSERT INTO collections VALUES ('col-1', 'local', 'notes', 0, 0)")
        for n, status in ((1, "ready"), (2, "queued")):
            db.execute(
                "INSERT INTO files (id, collection_id, filename, bytes, created_at, status) VALUES (?, ?, ?, 1, 0, ?)",
                (f"file-{n}", "col-1", "a.txt", status),
            )
    database.close()
    SegmentCache.open(tmp_path / "segments").close()
    for path in ("uploads/file-2.txt", "collections/local/col-1/store.json"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("word1")
    with contextlib.closing(sqlite3.connect(tmp_path / "collections/local/col-1/store.sqlite")) as db, db:
        db.execute("CREATE TABLE documents (source TEXT)")
        db.execute("INSERT INTO documents VALUES ('file-1')")
    return tmp_path


def execute(path: str, statement: str) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / path)) as db, db:
            db.execute(statement)

    return change


def write(path: str) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")

    return change


LEFT_OVER = {
    "an upload": (write("uploads/file-3.txt"), "upload file-3.txt without a row"),
    "a lost upload": (lambda folder: (folder / "uploads/file-2.txt").unlink(), "queued file file-2 without its upload"),
    "a collection": (write("collections/local/col-2/store.json"), "collection col-2 without a row"),
    "another tenant's": (write("collections/acme/col-1/store.json"), "collection col-1 without a row"),
    "documents": (execute("server.sqlite", "DELETE FROM files WHERE id = 'file-1'"), "the file file-1 without a row"),
    "making": (execute("server.sqlite", "INSERT INTO making VALUES ('file-1', 'ab')"), "segments in the making"),
    "an entry's file": (write(f"segments/ab/{'ab' * 32}.safetensors"), "has no row in the index"),
    "an unfinished file": (write(f"segments/ab/{'ab' * 32}.999999999.1.tmp"), "unfinished file"),
}  # fmt: skip


@pytest.mark.parametrize("change, told", LEFT_OVER.values(), ids=LEFT_OVER)
def test_what_is_left_over_is_found(folder: Path, change: Callable[[Path], Any], told: str) -> None:
    check_databases(folder)
    check_nothing_left_over(folder, {"word2"})
    change(folder)
    with pytest.raises(Broken, match=told):
        check_nothing_left_over(folder, set())


def test_what_was_under_way_is_told_by_files(folder: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    assert under_way(folder, remote, 10**9, 0.0) == ["ingesting"]
    write(f"segments/ab/{'ab' * 32}.1.1.tmp")(folder)
    write(f"segments/ab/{'ab' * 32}.safetensors")(folder)
    assert under_way(folder, remote, 10**9, 0.0) == ["ingesting", "writing", "writing behind"]
    assert under_way(folder, remote, 10**9, time.time() + 10) == ["ingesting", "writing"]
    write(f"remote/ab/{'ab' * 32}.safetensors")(tmp_path)
    check_remote(remote)  # what has no record is not there


@pytest.mark.parametrize("content", [b"xy", None], ids=["another file", "no file"])
def test_a_record_of_the_remote_has_its_file(tmp_path: Path, content: bytes | None) -> None:
    key = dict.fromkeys(("model", "kind", "namespace"), "") | dict.fromkeys(
        ("n_tokens", "seam_tokens", "format_version"), 1
    )
    digest = "ab" * 32
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / f"{digest}.json").write_text(json.dumps(Record(digest, 3, 0, "", key).fields()))
    if content is not None:
        (tmp_path / "ab" / f"{digest}.safetensors").write_bytes(content)
    with pytest.raises(Broken, match="truncated" if content else "no file"):
        check_remote(tmp_path)


def test_what_was_deleted_may_stand_nowhere(folder: Path) -> None:
    with pytest.raises(Broken, match="deleted word1 in uploads"):
        check_nothing_left_over(folder, {"word1"})


class Said:
    """A server that has one collection ``notes`` with these files."""

    def __init__(self, **status: str):
        self.status = status

    def ask(self, *_: Any) -> Any:
        return {"data": [{"name": "notes"}]}

    def files(self, collection: str) -> Any:
        return [{"id": name, "status": status, "error": "none"} for name, status in self.status.items()]

    def search(self, *_: Any) -> Any:
        return [{"text": "of red"}]


def promised(**files: File) -> DurabilityLog:
    return DurabilityLog(dict(files), {"notes"})


KEPT = {
    "ready": (Said(a="ready"), promised(a=File("notes", "red", ready=True))),
    "on its way": (Said(a="queued"), promised(a=File("notes", "red"))),
    "deleted, though not told": (Said(), promised(a=File("notes", "red", asked_to_go=True))),
    "not deleted yet": (Said(a="ready"), promised(a=File("notes", "red", asked_to_go=True))),
    "a collection deleted, though not told": (Said(), DurabilityLog({}, {"other"}, going={"other"})),
}
BROKEN = {
    "gone": (Said(), promised(a=File("notes", "red")), "is gone"),
    "failed": (Said(a="failed"), promised(a=File("notes", "red")), "failed"),
    "no longer ready": (Said(a="queued"), promised(a=File("notes", "red", ready=True)), "was ready"),
    "not found": (Said(a="ready"), promised(a=File("notes", "blue", ready=True)), "not found"),
    "no collection": (Said(), DurabilityLog({}, {"other"}), "collections .* are gone"),
}


@pytest.mark.parametrize("server, promises", KEPT.values(), ids=KEPT)
def test_kept(server: Any, promises: DurabilityLog) -> None:
    check(server, promises)


@pytest.mark.parametrize("server, promises, told", BROKEN.values(), ids=BROKEN)
def test_broken(server: Any, promises: DurabilityLog, told: str) -> None:
    with pytest.raises(Broken, match=told):
        check(server, promises)
