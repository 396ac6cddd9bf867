"""Readers: what each kind of file gives, and what is said of those that give nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.readers import SUFFIXES, ReadFailure, SourceDocument, read_path


def documents(*paths: Path) -> list[SourceDocument]:
    found = list(read_path(paths))
    assert not [item for item in found if isinstance(item, ReadFailure)]
    return found


def failures(*paths: Path) -> list[ReadFailure]:
    return [item for item in read_path(paths) if isinstance(item, ReadFailure)]


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pdf(path: Path, pages: list[str], title: str | None = None, password: str | None = None) -> Path:
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for text in pages:
        page = writer.add_blank_page(200, 200)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = writer._add_object(stream)
    if title:
        writer.add_metadata({"/Title": title})
    if password is not None:
        writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    writer.write(path)
    writer.close()
    return path


SITE = b"""<html><head><title>Opening hours</title></head><body><div id="navbar"><a>Log in</a></div>
<header><a>Museum</a></header><nav><a>Home</a> <a>About</a></nav><ul class="breadcrumbs"><li>Home</li></ul>
<div role="search"><input>Find</div><main><header><h1>Opening hours</h1></header><p>Daily from 9.</p>
<aside class="note">Closed on 1 May.</aside><footer>Updated by Ole.</footer></main>
<div class="side sidebar"><a>More</a></div><footer>Imprint</footer></body></html>"""


def test_what_leads_through_a_site_is_not_read(tmp_path: Path) -> None:
    (document,) = documents(write(tmp_path, "a.html", SITE))
    lines = [line for line in document.text.splitlines() if line.strip()]
    assert lines == ["# Opening hours", "Daily from 9.", "Closed on 1 May.", "Updated by Ole."]
    (only,) = documents(write(tmp_path, "b.html", b"<body><nav>Nothing but this</nav></body>"))
    assert only.text == "Nothing but this"


# ---- one document a file

TEXTS = {  # name, bytes, title, text
    "plain": ("note.txt", b"one\ntwo\n", "note", "one\ntwo\n"),
    "suffix in capitals": ("NOTE.TXT", b"one", "NOTE", "one"),
    "utf-8 with mark": ("a.txt", b"\xef\xbb\xbfcaf\xc3\xa9", "a", "café"),
    "utf-16 little": ("a.txt", b"\xff\xfe" + "né\r\nà".encode("utf-16-le"), "a", "né\nà"),
    "utf-16 big": ("a.txt", b"\xfe\xff" + "né".encode("utf-16-be"), "a", "né"),
    "utf-32": ("a.txt", b"\xff\xfe\0\0" + "né".encode("utf-32-le"), "a", "né"),
    "cp1252": (
        "a.txt",
        "“café” – 5 € for a long evening".encode("cp1252"),
        "a",
        "“café” – 5 € for a long evening",
    ),
    "latin-1": ("a.txt", b"d\xe9j\xe0 vu, \x81 again and again", "a", "déjà vu, \x81 again and again"),
    "utf-8 cut short": ("a.txt", "déjà vu à Paris é".encode()[:-1], "a", "déjà vu à Paris \ufffd"),
    "windows and old mac lines": ("a.txt", b"one\r\ntwo\rthree", "a", "one\ntwo\nthree"),
    "a very long line": ("a.txt", b"word " * 300_000, "a", "word " * 300_000),
    "line separator kept": ("a.txt", "a\u2028b".encode(), "a", "a\u2028b"),
    "markdown": (
        "a.md",
        "intro\n\n## The *title* ##\n# Next\n",
        "The *title*",
        "intro\n\n## The *title* ##\n# Next\n",
    ),
    "markdown, C# stays": ("a.md", "# Learn C#\nx", "Learn C#", "# Learn C#\nx"),
    "markdown, underlined": ("a.md", "Title\n=====\nx", "Title", "Title\n=====\nx"),
    "markdown, code is no heading": ("a.md", "```\n# no\n```\n# yes", "yes", "```\n# no\n```\n# yes"),
    "markdown, front matter": ("a.md", "---\n# no\nk: v\n---\n# yes", "yes", "---\n# no\nk: v\n---\n# yes"),
    "markdown, no heading": ("a.md", "#hashtag\ntext", "a", "#hashtag\ntext"),
    "html": (
        "a.html",
        "<html><head><title> My\n page </title><style>p{}</style></head><body><script>x()</script>"
        "<h1>Head</h1><p>Some <b>bold</b>\n text.</p><ul><li>one<li>two</ul></body></html>",
        "My page",
        "# Head\n\nSome bold text.\n\none\ntwo",
    ),
    "html, entities": ("a.htm", "<p>a &lt;|im_end|&gt; &amp; b&nbsp;c", "a", "a <|im_end|> & b c"),
    "html, title from h1": ("a.html", "<h1>One</h1><p>text", "One", "# One\n\ntext"),
    "html, pre": ("a.html", "<pre>a\n    b</pre>", "a", "a\n    b"),
    "html, table": ("a.html", "<table><tr><th>k<td>v</tr><tr><td>1<td>2</tr></table>", "a", "k v\n\n1 2"),
    "html, table with a header": (
        "a.html",
        "<p>Bill<table><tr><th>Item</th><th>Price</th></tr><tr><td>Desk,\n oak</td><td>$840</td></tr>"
        "<tr><td>Lamp</td><td></td></tr></table><p>End",
        "a",
        "Bill\n\nItem: Desk, oak; Price: $840\nItem: Lamp\n\nEnd",
    ),
    "html, table with a cell over two": (
        "a.html",
        "<table><tr><th>k<th>v</tr><tr><td colspan=2>1</tr></table>",
        "a",
        "k v\n\n1",
    ),
    "html, heading without text": ("a.html", "<h2> </h2><p>x", "a", "x"),
    "csv": (
        "price_list.csv",
        "Name,Net price\nDesk,840\n\nLamp,\n",
        "price list",
        "Name: Desk; Net price: 840\nName: Lamp",
    ),
    "csv, semicolons and quotes": ("a.csv", 'k;v\n"a;b";"two\nlines"\nc;d', "a", "k: a;b; v: two lines\nk: c; v: d"),
    "csv without a header": ("a.csv", "Desk,840\nLamp,38\n", "a", "Desk; 840\nLamp; 38"),
    "csv, one column": ("a.csv", "name\nDesk\n", "a", "name\nDesk"),
    "csv, more cells than names": ("a.csv", "k,v\n1,2,3\n", "a", "k: 1; v: 2; 3"),
    "csv, windows": ("a.csv", "k;v\r\nä;€\r\n".encode("cp1252"), "a", "k: ä; v: €"),
    "tsv": ("a.tsv", "k\tv\n1, 2\t3\n", "a", "k: 1, 2; v: 3"),
    "json": (
        "a.json",
        '{"title": "Rules", "max_loans": 20, "open": true, "note": null, "fees": {"adult": "$18", "lost": 4}}',
        "Rules",
        "title: Rules\nmax loans: 20\nopen: true\nfees: adult: $18; lost: 4",
    ),
    "json, rows": ("a.json", '[{"k": 1, "v": "x"}, {"k": 2}]', "a", "item: k: 1; v: x\nitem: k: 2"),
    "json, nested": ("a.json", '{"a": {"b": {"c": [1, 2]}, "d": "e"}}', "a", "a, b, c: 1, 2\na, d: e"),
    "json, a word": ("a.json", '"word"', "a", "word"),
    "html, declared": ("a.html", b"<meta charset='iso-8859-5'><p>\xbc\xd8\xe0", "a", "Мир"),
    "html, as xml": ("a.html", "<?xml version='1.0'?><html><body><p>x</p></body></html>", "a", "x"),
    "html, looks like a file name": ("a.html", "page.html", "a", "page.html"),
    "html, nested deeply": ("a.html", "<div>" * 3000 + "deep", "a", "deep"),
}


@pytest.mark.parametrize("name, content, title, text", TEXTS.values(), ids=TEXTS)
def test_a_file_becomes_a_document(tmp_path, name, content, title, text):
    path = write(tmp_path, name, content)
    (document,) = documents(path)
    assert (document.title, document.text, document.doc_id) == (title, text, str(path))
    assert document.metadata["path"] == str(path)
    document.text.encode()  # no lone surrogates


def test_the_hash_tells_a_change_and_nothing_else(tmp_path):
    path = write(tmp_path, "a.txt", "one")
    (first,) = documents(path)
    os.utime(path, (1, 1))
    (again,) = documents(path)
    write(tmp_path, "a.txt", "two")
    (changed,) = documents(path)
    assert first.content_hash == again.content_hash != changed.content_hash


# ---- PDF


def test_a_pdf_gives_its_pages_and_their_number(tmp_path):
    (document,) = documents(pdf(tmp_path / "a.pdf", ["first page", "", "third page"], title="The paper"))
    assert document.text == "first page\n\nthird page"
    assert document.title == "The paper"
    assert document.metadata["n_pages"] == 3


def test_a_pdf_that_anyone_may_open_is_read(tmp_path):
    (document,) = documents(pdf(tmp_path / "a.pdf", ["for all"], password=""))
    assert (document.title, document.text) == ("a", "for all")


def test_a_damaged_page_does_not_lose_the_others(tmp_path, monkeypatch):
    from pypdf import PageObject

    read = PageObject.extract_text

    def fail_on_second(page: PageObject) -> str:
        text = read(page)
        if "second" in text:
            raise KeyError("/Font")
        return text

    monkeypatch.setattr(PageObject, "extract_text", fail_on_second)
    failure, document = read_path(pdf(tmp_path / "a.pdf", ["first", "second", "third"]))
    assert "page 2 of 3 cannot be read: '/Font'" in str(failure)
    assert document.text == "first\n\nthird"


# ---- JSON lines

ROWS = {  # the lines; what comes of each: (end of doc_id, title, text) or the words of a failure
    "all fields": (
        ['{"id": "x1", "title": " T ", "text": "a\\r\\nb", "year": 1999}'],
        [("#x1", "T", "a\nb")],
    ),
    "text alone": (['{"text": "a"}', "", '{"text": "b"}'], [("#1", "", "a"), ("#3", "", "b")]),
    "number as id": (['{"id": 7, "text": "a"}'], [("#7", "", "a")]),
    "line separators in a string": (
        ['{"text": "a\u2028b\u2029c\x85d"}'],
        [("#1", "", "a\u2028b\u2029c\x85d")],
    ),
    "half a surrogate pair": (['{"text": "a\\ud800b"}'], [("#1", "", "a\ufffd\ufffd\ufffdb")]),
    "bad line": (
        ['{"text": "a"}', '{"text": ', '{"text": "c"}'],
        [("#1", "", "a"), "line 2: is not JSON", ("#3", "", "c")],
    ),
    "not an object": (["[1]", '"x"'], ["line 1: is a JSON list", "line 2: is a JSON str"]),
    "no text": (['{"title": "a"}'], ["line 1: it has no text"]),
    "text is a list": (['{"text": ["a"]}'], ["line 1: its text is a JSON list"]),
    "title is a number": (['{"title": 3, "text": "a"}'], ["line 1: its title is a JSON int"]),
    "text is blank": (['{"text": " \\n"}'], ["line 1: its text is empty"]),
    "id used twice": (
        ['{"id": "x", "text": "a"}', '{"id": "x", "text": "b"}'],
        [("#x", "", "a"), "line 2: its id 'x' was used on line 1"],
    ),
    "id that is the number of a line before": (
        ['{"text": "a"}', '{"id": 1, "text": "b"}', '{"id": "line 1", "text": "c"}'],
        [("#line line 1", "", "a"), ("#1", "", "b"), ("#line 1", "", "c")],
    ),
    "id that is the number of a line behind": (
        ['{"id": 2, "text": "first"}', '{"text": "second"}'],
        [("#2", "", "first"), ("#line 2", "", "second")],
    ),
    "no id": (
        ['{"id": "", "text": "a"}', '{"id": null, "text": "b"}', '{"id": " ", "text": "c"}', '{"id": 0, "text": "d"}'],
        [("#1", "", "a"), ("#2", "", "b"), ("#3", "", "c"), ("#0", "", "d")],
    ),
    "id that is a passage's": (
        ['{"id": "q", "docs": [{"text": "a"}, {"text": "b"}]}', '{"id": "q/2", "text": "c"}'],
        [("#q/1", "", "a"), ("#passage q/2", "", "b"), ("#q/2", "", "c")],
    ),
    "ids that are equal once they are valid Unicode": (
        ['{"id": "\\ud800", "text": "a"}', '{"id": "\\udfff", "text": "b"}'],
        [("#\ufffd\ufffd\ufffd", "", "a"), "line 2: its id '\ufffd\ufffd\ufffd' was used on line 1"],
    ),
    "nested too deeply": (["[" * 200_000], ["line 1: is not JSON"]),
    "questions with documents": (
        [
            '{"id": "q1", "docs": [{"title": "A", "text": "a"}, {"title": "B", "text": "b"}]}',
            '{"id": "q2", "docs": [{"title": "B", "text": "b"}, {"title": "B", "text": "c"}]}',
        ],
        [("#q1/1", "A", "a"), ("#q1/2", "B", "b"), ("#q2/2", "B", "c")],
    ),
    "a bad document of a question": (
        ['{"docs": [{"text": "a"}, 5]}'],
        [("#1/1", "", "a"), "line 1: docs[1] is a JSON int"],
    ),
}


@pytest.mark.parametrize("lines, wanted", ROWS.values(), ids=ROWS)
def test_rows_become_documents(tmp_path, lines, wanted):
    path = write(tmp_path, "rows.jsonl", "\n".join(lines))
    found = list(read_path(path))
    assert len(found) == len(wanted)
    for item, expected in zip(found, wanted, strict=True):
        if isinstance(expected, str):
            assert f"{path}, {expected}" in str(item)
            assert not item.skipped
        else:
            assert (item.doc_id, item.title, item.text) == (str(path) + expected[0], *expected[1:])


def test_other_fields_are_metadata_and_path_stays_the_file(tmp_path):
    row = {"id": 1, "title": "T", "text": "a", "year": 1999, "tags": ["x"], "path": "/wiki/T"}
    (document,) = documents(write(tmp_path, "rows.jsonl", json.dumps(row)))
    own = {"path": str(tmp_path / "rows.jsonl"), "format": "jsonl"}
    assert document.metadata == {**own, "year": 1999, "tags": ["x"], "row_path": "/wiki/T"}


JSONL_BYTES = {  # bytes; the words of failures
    "utf-8 with mark": (b'\xef\xbb\xbf{"text": "\xc3\xa9"}\r\n', []),
    "utf-16": ('\ufeff{"text": "\xe9"}\n'.encode("utf-16-le"), []),
    "one line in another encoding": (b'{"text": "\xc3\xa9"}\n{"text": "\xe9 "}\n', ["line 2: is not UTF-8"]),
}


@pytest.mark.parametrize("content, words", JSONL_BYTES.values(), ids=JSONL_BYTES)
def test_encodings_of_json_lines(tmp_path, content, words):
    first, *others = read_path(write(tmp_path, "rows.jsonl", content))
    assert first.text == "é"
    assert len(others) == len(words)
    for failure, expected in zip(others, words, strict=True):
        assert expected in str(failure)


def test_real_rows(tmp_path):
    rows = Path(__file__).parent.parent / "data" / "hotpotqa_few.jsonl"
    found = documents(rows)
    assert len(found) == len({(document.title, document.text) for document in found}) == 40
    assert all(document.title and "gold" not in document.metadata for document in found)


# ---- files that give nothing

NOTHING = {  # name, bytes, words, a note only
    "empty": ("a.txt", b"", "is empty", True),
    "blank": ("a.md", b" \n\n", "is empty", True),
    "empty pdf": ("a.pdf", b"", "is empty", True),
    "empty jsonl": ("a.jsonl", b"\n\n", "is empty", True),
    "html without text": ("a.html", b"<script>x()</script>", "is empty", True),
    "binary": ("a.txt", b"PK\x03\x04\x00\x00", "is a binary file", True),
    "binary without NUL": ("a.txt", b"\x89PNG\x01\x02\xff", "is a binary file", True),
    "binary jsonl": ("a.jsonl", b"\x00\x01\n\x02", "is a binary file", True),
    "Cyrillic in its own encoding": ("a.txt", "Мир и труд".encode("cp1251"), "Save it as UTF-8", False),
    "half of a utf-16 character": ("a.txt", b"\xff\xfea", "begins as utf-16, but is not", False),
    "no pdf": ("a.pdf", b"hello", "is not a readable PDF", False),
    "json with nothing in it": ("a.json", b'{"a": null}', "is empty", True),
    "no json": ("a.json", b"{a: 1}", "is not JSON: Expecting property name", False),
    "nested json": ("a.json", b"[" * 100_000, "is nested too deeply", False),
    "unknown kind": ("a.doc", b"x", "cannot read the kind .doc. Supported: .txt, .md", False),
    "no suffix": ("LICENSE", b"x", "cannot read a file without a suffix", False),
}


@pytest.mark.parametrize("name, content, words, skipped", NOTHING.values(), ids=NOTHING)
def test_a_file_that_gives_nothing_says_why(tmp_path, name, content, words, skipped):
    path = write(tmp_path, name, content)
    (failure,) = read_path(path)
    assert str(failure).startswith(f"{path}: ")
    assert words in failure.reason
    assert failure.skipped == skipped


def test_pdfs_without_text_or_with_a_password_say_so(tmp_path):
    (scanned,) = read_path(pdf(tmp_path / "scanned.pdf", ["", ""]))
    (locked,) = read_path(pdf(tmp_path / "locked.pdf", ["secret"], password="hush"))
    assert "holds no text on its 2 pages" in scanned.reason and "OCR" in scanned.reason
    assert "needs a password" in locked.reason
    assert not scanned.skipped and not locked.skipped


def test_a_file_that_cannot_be_opened_does_not_stop_the_others(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "c.txt"):
        write(tmp_path, name, name)
    read_bytes = Path.read_bytes

    def refuse_b(path: Path) -> bytes:
        if path.name == "b.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse_b)
    a, b, c = read_path(tmp_path)
    assert (a.text, b.reason, c.text) == ("a.txt", "cannot be read: Permission denied", "c.txt")


def test_a_file_that_vanishes_is_a_failure(tmp_path):
    write(tmp_path, "a.txt", "a")
    gone = write(tmp_path, "b.jsonl", "{}")
    found = read_path(tmp_path)
    next(found)
    gone.unlink()
    (failure,) = found
    assert failure.reason == "cannot be read: No such file or directory"


# ---- folders and paths


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name in ("b/z.txt", "b/a.txt", "c.txt", "a.txt", "B.txt", "b.md"):
        write(tmp_path, name, "x")
    names = [str(Path(document.doc_id).relative_to(tmp_path)) for document in documents(tmp_path)]
    assert names == ["B.txt", "a.txt", "b/a.txt", "b/z.txt", "b.md", "c.txt"]


def test_what_is_passed_over_in_a_folder_is_noted(tmp_path):
    for name in ("a.txt", ".hidden.txt", ".git/x.txt", "image.png", "Makefile"):
        write(tmp_path, name, "x")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
    notes = failures(tmp_path)
    assert all(note.skipped for note in notes)
    assert {Path(note.path).name: note.reason.split(":")[0] for note in notes} == {
        ".git": "is hidden",
        ".hidden.txt": "is hidden",
        "Makefile": "a file without a suffix is not read",
        "image.png": "the kind .png is not read",
        "pipe.txt": "is not a regular file",
        "dangling.txt": "is a link that leads nowhere",
    }


def test_linked_folders_are_followed_but_not_in_circles(tmp_path):
    docs, elsewhere = tmp_path / "docs", tmp_path / "elsewhere"
    write(docs, "sub/a.txt", "a")
    write(elsewhere, "b.txt", "b")
    (docs / "0-link").symlink_to(elsewhere)
    (docs / "1-same").symlink_to(docs / "sub")
    (docs / "sub" / "loop").symlink_to(docs)
    (docs / "up").symlink_to(tmp_path)
    (elsewhere / "back").symlink_to(docs)
    found = list(read_path(docs))
    read = [item.doc_id for item in found if isinstance(item, SourceDocument)]
    assert read == [str(docs / "sub" / "a.txt"), str(docs / "0-link" / "b.txt")]
    notes = [item for item in found if isinstance(item, ReadFailure)]
    assert {Path(note.path).name for note in notes} == {"1-same", "loop", "up", "back"}
    assert all(note.skipped for note in notes)


def test_a_file_named_twice_is_read_once(tmp_path, monkeypatch):
    path = write(tmp_path, "a.txt", "a")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.txt").symlink_to(path)
    (document,) = documents(tmp_path / "a.txt", Path("a.txt"), tmp_path / "x" / ".." / "a.txt")
    assert document.doc_id == str(path)
    (note,) = failures(tmp_path)
    assert note.reason == f"is the same file as {path}" and note.skipped


def test_a_hidden_file_named_by_the_user_is_read(tmp_path):
    (document,) = documents(write(tmp_path, ".notes.txt", "mine"))
    assert document.text == "mine"


def test_a_name_that_is_not_utf8_is_read(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        Path(os.fsdecode(path)).write_text("x")
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    (document,) = documents(tmp_path)
    assert document.doc_id == f"{tmp_path}/caf\\xe9.txt"


BAD_PATHS = {
    "missing": ("nowhere/a.txt", "there is no file or folder"),
    "an address": ("https://example.org/a.html", "there is no file or folder"),
    "NUL in it": ("a\0b", "cannot be opened"),
    "a name too long": ("a" * 5000, "cannot be opened"),
}


@pytest.mark.parametrize("path, words", BAD_PATHS.values(), ids=BAD_PATHS)
def test_a_path_that_leads_nowhere_is_refused_at_once(tmp_path, path, words):
    with pytest.raises(BadInput, match=words):
        read_path([write(tmp_path, "a.txt", "a"), path])


@pytest.mark.parametrize("names", [[], ["a.png", ".hidden.txt"]], ids=["empty", "of other kinds"])
def test_a_folder_with_nothing_to_read_lists_what_can_be_read(tmp_path, names):
    for name in names:
        write(tmp_path, name, "x")
    with pytest.raises(BadInput) as caught:
        read_path(tmp_path)
    assert all(suffix in str(caught.value) for suffix in SUFFIXES)
    assert all(name in str(caught.value) for name in names)
