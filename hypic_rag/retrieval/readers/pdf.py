"""The text of a PDF, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, clean, title_of_name


def read_pdf(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document, the pages' texts with a blank line between; a failure for each page that cannot be read.

    A failure instead of the document if it needs a password, holds no text or is no PDF.
    """
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    name = path_text(path)
    pages: list[str] = []
    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                yield ReadFailure(name, "needs a password. Save a copy without one (e.g. qpdf --decrypt)")
                return
            title = (reader.metadata.title or "") if reader.metadata else ""
            n_pages = len(reader.pages)
            for number in range(n_pages):
                try:
                    pages.append(clean(reader.pages[number].extract_text()).strip())
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
    text = "\n\n".join(page for page in pages if page)
    if not text:
        yield ReadFailure(name, f"holds no text on its {n_pages} pages (scanned images?). Run it through OCR first")
        return
    metadata = {"path": name, "format": "pdf", "n_pages": n_pages}
    yield SourceDocument(name, clean(title).strip() or title_of_name(path_text(Path(path.stem))), text, metadata)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
