"""Fingerprints: what is remembered of files is forgotten when they change, however well that is hidden."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypic_rag.engine import fingerprint as module
from hypic_rag.engine.fingerprint import TOKENIZER, WEIGHTS, fingerprint, states

WEIGHT = "model.safetensors"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Digests are remembered at once, as of files that were written long ago."""
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "SETTLED_NS", 0)
    return tmp_path / "home"


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / WEIGHT).write_bytes(b"a" * 1000)
    os.utime(folder / WEIGHT, (1, 1))
    time.sleep(0.02)  # beyond the tick in which it was written
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names, real = [], module.hashlib.file_digest

    def noting(handle: Any, kind: str) -> Any:
        names.append(Path(handle.name).name)
        return real(handle, kind)

    monkeypatch.setattr(module.hashlib, "file_digest", noting)
    return names


def in_place(file: Path) -> None:
    with file.open("r+b") as handle:
        handle.write(b"b" * 1000)
    os.utime(file, (1, 1))


def anew(file: Path) -> None:
    file.unlink()
    file.write_bytes(b"b" * 1000)
    os.utime(file, (1, 1))


def renamed(file: Path) -> None:
    new = file.with_name("new")
    new.write_bytes(b"b" * 1000)
    os.utime(new, (1, 1))
    new.replace(file)


def from_archive(file: Path) -> None:
    there = file.parent.parent / "packed"
    there.mkdir()
    (there / file.name).write_bytes(b"b" * 1000)
    os.utime(there / file.name, (1, 1))
    subprocess.run(["tar", "cf", there / "a.tar", "-C", there, file.name], check=True)
    subprocess.run(["tar", "xf", there / "a.tar", "-C", file.parent], check=True)


CHANGES = {
    "in place": in_place,
    "removed and written": anew,
    "renamed over": renamed,
    "out of an archive": from_archive,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_keeps_size_and_time_is_seen(folder: Path, change: Callable[[Path], None]) -> None:
    before, file = fingerprint(folder, WEIGHTS), folder / WEIGHT
    change(file)
    assert (file.stat().st_size, file.stat().st_mtime) == (1000, 1)
    assert fingerprint(folder, WEIGHTS) != before


def test_what_has_not_changed_is_not_read_again(folder: Path, hashed: list[str]) -> None:
    first = fingerprint(folder, WEIGHTS)
    assert [fingerprint(folder, WEIGHTS), hashed] == [first, [WEIGHT]]


def test_a_file_written_just_now_is_not_remembered(
    folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_NS", 3 * 10**9)
    fingerprint(folder, WEIGHTS)
    assert fingerprint(folder, WEIGHTS) and hashed == [WEIGHT, WEIGHT]


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.hashlib.file_digest

    def slow(handle: Any, kind: str) -> Any:
        digest = real(handle, kind)
        in_place(folder / WEIGHT)
        return digest

    before = states(folder, WEIGHTS)
    monkeypatch.setattr(module.hashlib, "file_digest", slow)
    torn = fingerprint(folder, WEIGHTS)
    monkeypatch.setattr(module.hashlib, "file_digest", real)
    assert fingerprint(folder, WEIGHTS) != torn
    assert states(folder, WEIGHTS) != before  # by which loading tells


def test_links_into_a_hub_cache_are_followed(folder: Path) -> None:
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for name in ("a", "b"):
        (blobs / name).write_bytes(name.encode() * 1000)
        os.utime(blobs / name, (1, 1))
    found = {}
    for name in ("a", "b", "a"):
        (folder / WEIGHT).unlink()
        (folder / WEIGHT).symlink_to(blobs / name)
        assert found.setdefault(name, fingerprint(folder, WEIGHTS)) == fingerprint(folder, WEIGHTS)
    assert found["a"] != found["b"]
    in_place(blobs / "a")
    assert fingerprint(folder, WEIGHTS) == found["b"]


def test_what_is_no_file_counts_for_nothing(folder: Path) -> None:
    want = fingerprint(folder, WEIGHTS)
    (folder / "old.bin").mkdir()
    (folder / "gone.bin").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.bin")
    assert fingerprint(folder, WEIGHTS) == want


def test_an_index_counts_where_it_chooses_among_files(home: Path, tmp_path: Path) -> None:
    """The fingerprint of a usual sharded checkpoint is that of its weights."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for shard in shards:
        (folder / shard).write_text(shard)
    weights = fingerprint(folder, WEIGHTS)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    assert fingerprint(folder, WEIGHTS) == weights
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[0]}}))
    assert fingerprint(folder, WEIGHTS) != weights
    (folder / shards[1]).write_text("other")
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    assert fingerprint(folder, WEIGHTS) != weights


TOKENIZER_FILES = ("tokenizer.json", "qwen.tiktoken", "tekken.json", "rwkv_vocab_v20230424.txt", "spiece.model")


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_every_kind_of_tokenizer_counts(folder: Path, name: str) -> None:
    before = fingerprint(folder, TOKENIZER)
    (folder / name).write_text("x")
    assert fingerprint(folder, TOKENIZER) != before


def damaged(place: str) -> dict[str, str]:
    wrong: list[Any] = [5, None, [], {}, "0" * 64, {"state": 5, "sha256": "0" * 64}, {"state": [], "sha256": 5}]
    return {str(wrong_value): json.dumps({place: wrong_value}) for wrong_value in wrong} | {
        "no JSON": "{", "a list": "[[1, 2]]", "a number": "5", "nested": "[" * 10**5, "empty": "", "a NUL": "\0",
        "a digest that is none": json.dumps({place: {"state": "STATE", "sha256": "5"}}),
        "another digest": json.dumps({place: {"state": "STATE", "sha256": "0" * 64, "seal": "00000000"}}),
    }  # fmt: skip


@pytest.mark.parametrize("name", damaged(""))
def test_a_memo_of_anything_else_counts_for_nothing(folder: Path, home: Path, name: str) -> None:
    want, file = fingerprint(folder, WEIGHTS), folder / WEIGHT
    known = json.loads((home / "fingerprints.json").read_text())[str(file)]["state"]
    text = damaged(str(file))[name].replace('"STATE"', json.dumps(known))
    (home / "fingerprints.json").write_text(text)
    assert fingerprint(folder, WEIGHTS) == want


def read_only(home: Path) -> None:
    home.mkdir()
    home.chmod(0o500)


HOMES: dict[str, Callable[[Path], object]] = {
    "a file": lambda home: home.write_text(""),
    "below a file": lambda home: (home.write_text(""), os.environ.update(HYPIC_HOME=str(home / "x"))),
    "the memo is a folder": lambda home: (home / "fingerprints.json").mkdir(parents=True),
    "a dead link": lambda home: home.symlink_to("nowhere/at/all"),
    "read-only": read_only,
    "of nobody": lambda home: os.environ.update(HYPIC_HOME="~nobody-has-this-name/x"),
}


@pytest.mark.parametrize("make", HOMES.values(), ids=HOMES)
def test_a_home_that_cannot_be_used_is_no_error(folder: Path, home: Path, make: Callable[[Path], object]) -> None:
    want = fingerprint(folder, WEIGHTS)
    shutil.rmtree(home)
    make(home)
    assert fingerprint(folder, WEIGHTS) == want


def test_clean_up_on_a_read_only_file_system_is_no_error(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, to remove what is not there is another error than elsewhere."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert fingerprint(folder, WEIGHTS)
