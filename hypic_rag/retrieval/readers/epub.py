"""The text of a book (EPUB), chapter after chapter."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.archives import TITLE, BadArchive, opened_archive, words
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, clean, whole_file
from hypic_rag.retrieval.readers.encoding import NotText, decode
from hypic_rag.retrieval.readers.markup import declared_charset, html_title_and_text

CONTAINER = "META-INF/container.xml"


def read_epub(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document: the chapters in the order of reading, each read as a web page is. A failure for
    each chapter that cannot be read."""
    name = path_text(path)
    texts: list[str] = []
    try:
        with opened_archive(path, "epub") as archive:
            title, chapters = _contents(archive)
            for chapter in chapters:
                try:
                    raw = archive.read(chapter)
                    texts.append(html_title_and_text(clean(decode(raw, declared_charset(raw))[0]))[1])
                except (KeyError, NotText, zipfile.BadZipFile) as error:
                    yield ReadFailure(name, f"{Path(chapter).name} in it cannot be read: {words(error)}")
    except BadArchive as error:
        yield ReadFailure(name, str(error))
        return
    except (KeyError, ElementTree.ParseError, zipfile.BadZipFile, NotImplementedError) as error:
        yield ReadFailure(name, f"is not a readable epub: {words(error)}")
        return
    yield whole_file(path, "epub", title, "\n\n".join(filter(None, texts)))


def _contents(archive: zipfile.ZipFile) -> tuple[str, list[str]]:
    """Return the book's title, and the names of its chapters. Raises KeyError, ParseError."""
    roots = ElementTree.fromstring(archive.read(CONTAINER)).iterfind(".//{*}rootfile")
    package = next((root.get("full-path", "") for root in roots), "")
    book = ElementTree.fromstring(archive.read(package))
    items = book.iterfind("{*}manifest/{*}item")
    files = {item.get("id"): item.get("href", "") for item in items if item.get("properties") != "nav"}
    order = (files.get(item.get("idref"), "") for item in book.iterfind("{*}spine/{*}itemref"))
    folder = posixpath.dirname(package)
    names = [posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href]
    return book.findtext(f"{{*}}metadata/{TITLE}") or "", names
