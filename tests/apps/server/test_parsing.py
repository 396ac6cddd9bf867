"""Hostile files: each ends with a reason, in time, and harms nothing."""

import json
import os
import threading
import time
from pathlib import Path

import openpyxl
import pytest
from hostile import pdf
from hypic_apps.server.ingestion.parse_sandbox import NotRead, ParseLimits, Stopped, documents, parse

LIMITS = ParseLimits(seconds=30, memory=512 * 2**20, characters=50_000, documents=100)


def read(
    folder: Path, name: str, content: bytes, limits: ParseLimits = LIMITS
) -> tuple[list[tuple[str, str]], str | None]:
    (folder / name).write_bytes(content)
    out = folder / "out.parsed"
    told = parse(folder / name, out, limits, threading.Event())
    return [(title, text) for title, text, *_ in documents(out)], told


def test_what_is_well_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "Viele Grüße".encode("cp1252")) == ([("", "Viele Grüße")], None)
    assert read(tmp_path, "a.md", b"# Title\n\nText") == ([("Title", "# Title\n\nText")], None)
    assert read(tmp_path, "a.pdf", pdf(b"BT /F 12 Tf 10 10 Td (Hello there) Tj ET")) == ([("", "Hello there")], None)
    book = openpyxl.Workbook()
    for row in (("Item", "Price"), ("Desk", 840)):
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    assert read(tmp_path, "a.xlsx", (tmp_path / "book.xlsx").read_bytes()) == ([("", "Item: Desk; Price: 840")], None)
    assert read(tmp_path, "a.py", b"print(1)") == ([("", "print(1)")], None)  # the upload's own name is no title
    rows = b'{"text": "a"}\n{"text": 1}\n{"text": "\\ud800b", "x": "\\ud800"}'
    assert read(tmp_path, "a.jsonl", rows)[0] == [("", "a"), ("", "\ufffd" * 3 + "b")]
    assert "line 2" in (read(tmp_path, "a.jsonl", rows)[1] or "")


HOSTILE = {  # name, content; words of the reason
    "nothing": ("a.txt", b"", "is empty"),
    "NULs": ("a.txt", b"\0" * 1000, "binary"),
    "UTF-16 cut short": ("a.txt", b"\xff\xfea\0b", "utf-16"),
    "too much text": ("a.txt", b"word " * 20_000, "50,000 characters"),
    "too many documents": ("a.jsonl", b'{"text": "a"}\n' * 200, "100 documents"),
    "too much beside the text": ("a.jsonl", json.dumps({"text": "a", "b": "x" * 60_000}).encode(), "characters"),
    "deep JSON": ("a.jsonl", b"[" * 100_000, "not JSON"),
    "deep HTML": ("a.html", b"<b>" * 20_000 + b"x" * 60_000, ""),
    "PDF of nothing": ("a.pdf", b"%PDF-1.7\n" + os.urandom(1000), "PDF"),
}


@pytest.mark.parametrize("name, content, words", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_ends_with_a_reason(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(NotRead) as refused:
        read(tmp_path, name, content)
    assert words in str(refused.value) and str(tmp_path) not in str(refused.value)
    assert time.monotonic() - began < 2 * LIMITS.seconds + 5


def test_a_long_line_is_too_much_memory(tmp_path: Path) -> None:
    """The bounds are small ones, so that this is quick; a gigabyte ends alike."""
    (tmp_path / "a.txt").write_bytes(b"x" * 2**27)
    limits = ParseLimits(memory=2**28)
    for name in ("a.txt", "a.jsonl", "a.html"):
        (tmp_path / "a.txt").rename(tmp_path / name)
        with pytest.raises(NotRead, match=r"needs more memory than 268\.4 MB"):
            parse(tmp_path / name, tmp_path / "out", limits, threading.Event())
        (tmp_path / name).rename(tmp_path / "a.txt")


def test_time_is_limited_and_work_can_be_stopped(tmp_path: Path) -> None:
    slow = tmp_path / "a.html"
    slow.write_bytes(b"<p>a</p>" * 3_000_000)
    limits = ParseLimits(seconds=1, memory=8 * 2**30, characters=10**9)
    began = time.monotonic()
    with pytest.raises(NotRead, match="more than the 1 s"):
        parse(slow, tmp_path / "out", limits, threading.Event())
    assert time.monotonic() - began < 8

    stopped = threading.Event()
    threading.Timer(0.5, stopped.set).start()
    with pytest.raises(Stopped):
        parse(slow, tmp_path / "out", LIMITS, stopped)
