"""Word, PowerPoint, Excel and EPUB: what is read, and that hostile or damaged files are told and harm nobody."""

from __future__ import annotations

import datetime
import itertools
import zipfile
from collections.abc import Callable
from pathlib import Path

import openpyxl
import pptx
import pytest

from hypic_rag.retrieval.readers import ReadFailure, SourceDocument, archives, read_path, spreadsheet

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def zipped(path: Path, **parts: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def core(title: str) -> str:
    return (
        f'<cp:coreProperties xmlns:cp="{PACKAGE}/metadata/core-properties" '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></cp:coreProperties>'
    )


def docx(path: Path, body: str, title: str = "", before: str = "") -> Path:
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    return zipped(
        path,
        **{
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Override PartName="/word/document.xml" '
            f'ContentType="{kind}.document.main+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{REL}/officeDocument" Target="word/document.xml"/></Relationships>',
            "word/styles.xml": f'<w:styles {W}><w:style w:type="paragraph" w:styleId="H"><w:name w:val="heading 2"/>'
            "</w:style></w:styles>",
            "word/document.xml": f"{before}<w:document {W}><w:body>{body}</w:body></w:document>",
            "docProps/core.xml": core(title),
        },
    )


def p(text: str, style: str = "") -> str:
    styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{styled}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f"<w:tc>{p(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def workbook(path: Path, *sheets: tuple[str, list[list[object]]], title: str = "") -> Path:
    book = openpyxl.Workbook()
    del book["Sheet"]
    book.properties.title = title or None
    for name, rows in sheets:
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def slides(path: Path) -> Path:
    show = pptx.Presentation()
    show.core_properties.title = "PowerPoint Presentation"
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text, first.placeholders[1].text = "Goals", "Ship it\nMeasure it"
    first.notes_slide.notes_text_frame.text = "Speak slowly"
    show.slides.add_slide(show.slide_layouts[6])
    last = show.slides.add_slide(show.slide_layouts[6])
    group = last.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 1, 1).text_frame.text = "In a group"
    cells = last.shapes.add_table(2, 2, 0, 0, 9, 9).table
    for i, text in enumerate(("Year", "Sales", "2020", "17")):
        cells.cell(i // 2, i % 2).text = text
    show.save(path)
    return path


def book(path: Path) -> Path:
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>The Lighthouse</dc:title></metadata><manifest>"
        '<item id="b" href="two%20b.xhtml"/><item id="a" href="../one.xhtml"/><item id="n" href="nav.xhtml" '
        'properties="nav"/></manifest>'
        '<spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )
    return zipped(
        path,
        **{
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="OPS/book.opf"/></rootfiles></container>',
            "OPS/book.opf": package,
            "OPS/nav.xhtml": "<html><body><nav><a>Contents</a></nav><p> </p></body></html>",
            "one.xhtml": "<html><body><h1>One</h1><p>The keeper rowed out.</p></body></html>",
            "OPS/two b.xhtml": "<html><body><h1>Two</h1><p>Née in Vardø.</p></body></html>",
        },
    )


SHEET: list[list[object]] = [
    ["Prices of 2024"],
    [],
    ["Item", None, "Price", "Since", "Sold"],
    ["Desk", None, 840.5, datetime.date(2020, 1, 2), True],
    ["Lamp", None, 12.0, datetime.datetime(2021, 5, 6, 7, 8), None],
]
READ: dict[str, tuple[Callable[[Path], Path], str, str, str]] = {  # made by, name, title, text
    "docx": (
        lambda path: docx(
            path,
            p("Visiting", "H") + p("Open daily.") + table(("Item", "Price"), ("Desk", "$840"), ("Lamp", "$12")),
            title="Handbook",
        ),
        "a.docx", "Handbook", "## Visiting\nOpen daily.\n\nItem: Desk; Price: $840\nItem: Lamp; Price: $12",
    ),
    "docx with tracked changes and a content control": (
        lambda path: docx(
            path,
            "<w:p><w:r><w:t>Rent is </w:t></w:r><w:del><w:r><w:delText>900</w:delText></w:r></w:del>"
            "<w:ins><w:r><w:t>950</w:t></w:r></w:ins></w:p><w:sdt><w:sdtContent>" + p("In a control") +
            "</w:sdtContent></w:sdt>",
            title="Microsoft Word - lease.doc",
        ),
        "lease-flat_14b.docx", "lease flat 14b", "Rent is 950\nIn a control",
    ),
    "pptx": (
        slides, "goals.pptx", "goals",
        "# Goals\n\nShip it\nMeasure it\n\nNotes: Speak slowly\n\nIn a group\n\nYear: 2020; Sales: 17",
    ),
    "xlsx": (
        lambda path: workbook(path, ("Stock", SHEET), ("Empty", [])), "a.xlsx", "a",
        "Prices of 2024\nItem: Desk; Price: 840.5; Since: 2020-01-02; Sold: yes\n"
        "Item: Lamp; Price: 12; Since: 2021-05-06 07:08",
    ),
    "xlsx of two sheets": (
        lambda path: workbook(path, ("A", [["x", "y"], [1, 2]]), ("B", [["One note"]]), title="Two"), "a.xlsx", "Two",
        "# A\n\nx: 1; y: 2\n\n# B\n\nOne note",
    ),
    "epub": (book, "b.epub", "The Lighthouse", "# One\nThe keeper rowed out.\n\n# Two\nNée in Vardø."),
}  # fmt: skip


def squeezed(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line)


@pytest.mark.parametrize("make, name, title, text", READ.values(), ids=READ)
def test_what_is_read(make: Callable[[Path], Path], name: str, title: str, text: str, tmp_path: Path) -> None:
    (document,) = read_path(make(tmp_path / name))
    assert isinstance(document, SourceDocument)
    assert (document.title, squeezed(document.text)) == (title, squeezed(text))
    assert document.metadata["format"] == Path(name).suffix[1:]


def test_a_slide_is_a_page(tmp_path: Path) -> None:
    (document,) = read_path(slides(tmp_path / "a.pptx"))
    assert isinstance(document, SourceDocument) and document.metadata["n_pages"] == 3
    assert [label for _, label in document.pages] == ["1", "3"]


def cut(path: Path) -> Path:
    workbook(path, ("A", [["x" * 50, i] for i in range(500)]))
    path.write_bytes(path.read_bytes()[:4000])
    return path


def sealed(path: Path) -> Path:
    path.write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + b"\0" * 600)
    return path


def bomb(path: Path) -> Path:
    return docx(path, p("a" * (archives.MOST_MARKUP + 1)))


def laughing(path: Path) -> Path:
    names = "abcdefghij"
    nested = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in itertools.pairwise(names))
    return docx(path, p("&j;"), before=f'<!DOCTYPE d [<!ENTITY a "{"ha" * 50}">{nested}]>')


def outside(path: Path) -> Path:
    return docx(path, p("&x;"), before='<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/hostname">]>')


def many(path: Path) -> Path:
    return zipped(path, **{f"{i}.xml": "" for i in range(archives.MOST_ENTRIES + 1)})


FAILED: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "no archive": (lambda path: path.write_bytes(b"hello") and path, "a.docx", "is not a readable docx"),
    "an archive of something else": (lambda path: zipped(path, a="b"), "a.pptx", "is not a readable pptx"),
    "cut": (cut, "a.xlsx", "is not a readable xlsx"),
    "locked or older": (sealed, "a.docx", "needs a password, or is of an older format"),
    "unpacks to far more": (bomb, "a.docx", "more than the 200.0 MB that are read"),
    "many parts": (many, "a.epub", "holds 20,001 parts"),
    "entities of entities": (laughing, "a.docx", "is not a readable docx"),
    "no container": (lambda path: zipped(path, a="b"), "a.epub", "is not a readable epub"),
}


@pytest.mark.parametrize("make, name, told", FAILED.values(), ids=FAILED)
def test_what_cannot_be_read_is_told(make: Callable[[Path], Path], name: str, told: str, tmp_path: Path) -> None:
    (failure,) = read_path(make(tmp_path / name))
    assert isinstance(failure, ReadFailure) and not failure.skipped
    assert told in failure.reason


def test_a_file_that_a_document_names_is_not_opened(tmp_path: Path) -> None:
    secret = Path("/etc/hostname").read_text().strip()
    for item in read_path(outside(tmp_path / "a.docx")):
        assert secret not in str(item)


def test_cells_that_are_only_said_to_be_there_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["XFD200"] = "first", "last"
    book.save(tmp_path / "a.xlsx")
    (document,) = read_path(tmp_path / "a.xlsx")
    assert isinstance(document, SourceDocument) and document.text == "first\nlast"
    monkeypatch.setattr(spreadsheet, "MOST_CELLS", 10_000)
    (told,) = read_path(tmp_path / "a.xlsx")
    assert "more than 10,000 cells" in str(told)


def test_an_archive_that_lies_about_its_sizes_gets_no_further_than_it_says(tmp_path: Path) -> None:
    path = docx(tmp_path / "a.docx", p("word " * 2000))
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("word/document.xml").file_size
    raw = raw.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    path.write_bytes(raw)
    (failure,) = read_path(path)
    assert isinstance(failure, ReadFailure) and "is not a readable docx" in failure.reason


PLACEHOLDERS = ["(anonymous)", "untitled", "Untitled-1", "Microsoft Word - report final.doc", "PowerPoint Presentation",
                "Document1", "report.docx", "(unspecified)"]  # fmt: skip
TITLES = ["Anonymous Was A Woman", "Untitled Goose Game", "A Document of Barbarism", "Title IX", "Microsoft"]


@pytest.mark.parametrize("title", [*PLACEHOLDERS, *TITLES])
def test_a_title_that_a_program_wrote_is_none(title: str, tmp_path: Path) -> None:
    (document,) = read_path(docx(tmp_path / "lease-2024.docx", p("Rent."), title=title))
    assert isinstance(document, SourceDocument)
    assert document.title == (title if title in TITLES else "lease 2024")


def test_source_code_is_called_by_its_whole_name(tmp_path: Path) -> None:
    (tmp_path / "tax_rules.py").write_text("def tax(income):\n    return income // 4\n")
    (document,) = read_path(tmp_path)
    assert isinstance(document, SourceDocument)
    assert (document.title, document.metadata["format"]) == ("tax_rules.py", "code")
