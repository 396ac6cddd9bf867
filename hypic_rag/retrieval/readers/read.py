"""Reads every file under the paths that a user names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hypic_rag.paths import path_text, reason
from hypic_rag.retrieval.readers.document import CODE, ReadFailure, SourceDocument, clean, whole_file
from hypic_rag.retrieval.readers.encoding import NotText, decode
from hypic_rag.retrieval.readers.epub import read_epub
from hypic_rag.retrieval.readers.files import CODE_SUFFIXES, Known, find_files
from hypic_rag.retrieval.readers.jsonl import read_jsonl
from hypic_rag.retrieval.readers.markup import declared_charset, html_title_and_text, markdown_title
from hypic_rag.retrieval.readers.office import read_docx, read_pptx
from hypic_rag.retrieval.readers.pages import Pages, joined
from hypic_rag.retrieval.readers.pdf import read_pdf
from hypic_rag.retrieval.readers.spreadsheet import read_xlsx
from hypic_rag.retrieval.readers.tables import csv_text, json_title_and_text

Reader = Callable[[Path], Iterator[SourceDocument | ReadFailure]]


def read_path(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    known: Known = lambda path: False,
) -> Iterator[SourceDocument | ReadFailure]:
    """Read the documents of files and folders, one by one, and a failure for each file or line that gives none.

    Files of a folder come in the order of their names. Nothing that is wrong with one file stops the others.
    Raises BadInput at once, before the first document: a path does not exist, a folder holds nothing to read, and
    neither is ``known`` (see find_files).
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return _read_all(find_files([Path(path) for path in several], known))


def _read_all(found: list[Path | ReadFailure]) -> Iterator[SourceDocument | ReadFailure]:
    for item in found:
        if isinstance(item, ReadFailure):
            yield item
            continue
        try:
            yield from READERS[item.suffix.lower()](item)
        except OSError as error:  # no permission, or it has vanished since it was found
            yield ReadFailure(path_text(item), f"cannot be read: {reason(error)}")
        except NotText as error:
            yield ReadFailure(path_text(item), str(error), skipped=error.is_binary)
        except RecursionError:
            yield ReadFailure(path_text(item), "is nested too deeply to be read")


def _read_text(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    text, encoding = decode(path.read_bytes())
    text = clean(text)
    pages: Pages = ()
    if "\f" in text:  # as pdftotext ends a page
        text, pages = joined((str(n), page) for n, page in enumerate(text.split("\f"), 1))
    yield whole_file(path, "txt", "", text, pages, encoding=encoding)


def _read_markdown(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    text, encoding = decode(path.read_bytes())
    yield whole_file(path, "md", markdown_title(clean(text)), text, encoding=encoding)


def _read_code(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    text, encoding = decode(path.read_bytes())
    yield whole_file(path, CODE, "", text, encoding=encoding)


def _read_html(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    raw = path.read_bytes()
    markup, encoding = decode(raw, declared_charset(raw))
    title, text = html_title_and_text(clean(markup))
    yield whole_file(path, "html", title, text, encoding=encoding)


def _read_csv(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    text, encoding = decode(path.read_bytes())
    try:
        yield whole_file(path, "csv", "", csv_text(clean(text)), encoding=encoding)
    except ValueError as error:
        yield ReadFailure(path_text(path), str(error))


def _read_json(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    text, encoding = decode(path.read_bytes())
    if not text.strip():
        yield _empty(path)
        return
    try:
        title, text = json_title_and_text(clean(text))
        yield whole_file(path, "json", title, text, encoding=encoding)
    except ValueError as error:
        yield ReadFailure(path_text(path), f"is not JSON: {error}")


def _not_empty(reader: Reader) -> Reader:
    def read(path: Path) -> Iterator[SourceDocument | ReadFailure]:
        if path.stat().st_size == 0:
            yield _empty(path)
        else:
            yield from reader(path)

    return read


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _not_empty(read_pdf),
    ".docx": _not_empty(read_docx),
    ".pptx": _not_empty(read_pptx),
    ".xlsx": _not_empty(read_xlsx),
    ".epub": _not_empty(read_epub),
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": read_jsonl,
    **dict.fromkeys(CODE_SUFFIXES, _read_code),
}


def _empty(path: Path) -> ReadFailure:
    return ReadFailure(path_text(path), "is empty", skipped=True)
