"""The text of a PDF, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, clean, whole_file
from hypic_rag.retrieval.readers.pages import joined

if TYPE_CHECKING:
    from pypdf import PdfReader

LONGEST_LABEL = 20  # characters


def read_pdf(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document, the pages' texts with a blank line between; a failure for each page that cannot be read.

    A failure instead of the document if it needs a password, holds no text or is no PDF.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    name = path_text(path)
    pages: list[tuple[str, str]] = []
    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                yield ReadFailure(name, "needs a password. Save a copy without one (e.g. qpdf --decrypt)")
                return
            title = (reader.metadata.title or "") if reader.metadata else ""
            n_pages = len(reader.pages)
            labels = _labels(reader, n_pages)
            for number in range(n_pages):
                try:
                    pages.append((labels[number], clean(reader.pages[number].extract_text())))
                except MemoryError:
                    raise
                except Exception as error:  # a damaged page raises nearly anything
                    yield ReadFailure(name, f"page {number + 1} of {n_pages} cannot be read: {_words(error)}")
    except (OSError, MemoryError):
        raise
    except DependencyError as error:
        yield ReadFailure(name, f"is encrypted in a way that needs another package: {_words(error)}")
        return
    except Exception as error:  # so does a damaged file
        yield ReadFailure(name, f"is not a readable PDF: {_words(error)}")
        return
    text, starts = joined(pages)
    if not text:
        yield ReadFailure(name, f"holds no text on its {n_pages} pages (scanned images?). Run it through OCR first")
        return
    yield whole_file(path, "pdf", title, text, starts, n_pages=n_pages)


def _labels(reader: PdfReader, n_pages: int) -> list[str]:
    """Return what a viewer calls each page; their numbers, from 1, where the file says nothing that could be shown."""
    try:
        labels = [" ".join(clean(label).split()) for label in reader.page_labels]
    except MemoryError:
        raise
    except Exception:  # as of a page
        labels = []
    labels += [""] * (n_pages - len(labels))
    return [label if 0 < len(label) <= LONGEST_LABEL else str(n) for n, label in enumerate(labels, 1)]


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
