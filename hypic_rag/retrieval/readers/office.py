"""The text of Word documents and of presentations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.archives import BadArchive, core_title, opened_archive, words
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, whole_file
from hypic_rag.retrieval.readers.markup import html_title_and_text
from hypic_rag.retrieval.readers.pages import joined
from hypic_rag.retrieval.readers.tables import table_text


def read_docx(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document: headings as Markdown's, rows of tables with the names of their columns, footnotes at the end;
    what was deleted with changes tracked, comments, headers and footers are left out."""
    import mammoth

    try:
        with opened_archive(path, "docx") as archive, path.open("rb") as file:
            title = core_title(archive)
            no_pictures = mammoth.images.img_element(lambda image: {})
            markup = mammoth.convert_to_html(file, convert_image=no_pictures).value
            _, text = html_title_and_text(markup, has_header_rows=True)
    except BadArchive as error:
        yield ReadFailure(path_text(path), str(error))
        return
    except (OSError, MemoryError, RecursionError):
        raise
    except Exception as error:  # a damaged file raises nearly anything
        yield ReadFailure(path_text(path), f"is not a readable docx: {words(error)}")
        return
    yield whole_file(path, "docx", title, text)


def read_pptx(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document, a page a slide: its title as a heading, texts, tables, then the notes. A failure for each
    slide that cannot be read."""
    import pptx

    name = path_text(path)
    slides: list[tuple[str, str]] = []
    try:
        with opened_archive(path, "pptx") as archive:
            title = core_title(archive)
        for number, slide in enumerate(pptx.Presentation(str(path)).slides, 1):
            try:
                slides.append((str(number), "\n\n".join(_slide_texts(slide))))
            except (OSError, MemoryError, RecursionError):
                raise
            except Exception as error:
                yield ReadFailure(name, f"slide {number} cannot be read: {words(error)}")
    except BadArchive as error:
        yield ReadFailure(name, str(error))
        return
    except (OSError, MemoryError, RecursionError):
        raise
    except Exception as error:  # as of a docx
        yield ReadFailure(name, f"is not a readable pptx: {words(error)}")
        return
    text, pages = joined(slides)
    if not text:
        yield ReadFailure(
            name, f"holds no text on its {len(slides)} slides (pictures of text?). Run it through OCR first"
        )
        return
    yield whole_file(path, "pptx", title, text, pages, n_pages=len(slides))


def _slide_texts(slide: Any) -> Iterator[str]:
    heading = slide.shapes.title
    if heading is not None and heading.text_frame.text.strip():
        yield f"# {' '.join(heading.text_frame.text.split())}"
    for shape in slide.shapes:
        if heading is None or shape.shape_id != heading.shape_id:
            yield from _shape_texts(shape)
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None and notes.text.strip():
        yield f"Notes: {notes.text.strip()}"


def _shape_texts(shape: Any) -> Iterator[str]:
    if shape.has_text_frame:
        if text := shape.text_frame.text.replace("\v", "\n").strip():
            yield text
    elif getattr(shape, "has_table", False):
        yield table_text([[cell.text for cell in row.cells] for row in shape.table.rows])
    for inner in getattr(shape, "shapes", ()):  # of a group
        yield from _shape_texts(inner)
