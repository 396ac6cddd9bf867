"""The sheets of a workbook, a line a row."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.archives import BadArchive, core_title, opened_archive, words
from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, whole_file
from hypic_rag.retrieval.readers.tables import row_text, table_text

MOST_CELLS = 20_000_000  # of a sheet, empty ones too: a few bytes can say that there are 17 billion


def read_xlsx(path: Path) -> Iterator[SourceDocument | ReadFailure]:
    """Yield one document: of each sheet its name as a heading, where there are several, and its rows as ``table_text``.

    Of a formula it is the value that was saved with it. A failure for each sheet that cannot be read.
    """
    import openpyxl

    name = path_text(path)
    texts: list[tuple[str, str]] = []
    try:
        with opened_archive(path, "xlsx") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of extensions that are of no concern for what cells hold
            title = core_title(archive)
            workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
            n_sheets = len(workbook.worksheets)
            try:
                for sheet in workbook.worksheets:
                    try:
                        texts.append((sheet.title, sheet_text(_rows(sheet.iter_rows(values_only=True)))))
                    except (OSError, MemoryError):
                        raise
                    except Exception as error:
                        yield ReadFailure(name, f"sheet {sheet.title!r} cannot be read: {words(error)}")
            finally:
                workbook.close()
    except BadArchive as error:
        yield ReadFailure(name, str(error))
        return
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file raises nearly anything
        yield ReadFailure(name, f"is not a readable xlsx: {words(error)}")
        return
    filled = [(sheet, text) for sheet, text in texts if text]
    if not filled and n_sheets > len(texts):
        return  # told already
    if len(filled) > 1:
        filled = [(sheet, f"# {sheet}\n\n{text}") for sheet, text in filled]
    yield whole_file(path, "xlsx", title, "\n\n".join(text for _, text in filled))


def sheet_text(rows: Iterable[list[str]]) -> str:
    """Return the rows with a cell in them as ``table_text``, without columns that are empty; rows of a single cell
    above the table, such as its title, are lines of their own."""
    filled = [row for row in rows if any(row)]
    above = 0
    while above < len(filled) and sum(map(bool, filled[above])) < 2:
        above += 1
    table = filled[above:]
    columns = [i for i in range(max(map(len, table), default=0)) if any(i < len(row) and row[i] for row in table)]
    table = [[row[i] if i < len(row) else "" for i in columns] for row in table]
    return "\n".join(filter(None, (*(row_text((), row) for row in filled[:above]), table_text(table))))


def _rows(rows: Iterable[tuple[object, ...]]) -> Iterator[list[str]]:
    n_cells = 0
    for row in rows:
        n_cells += len(row) + 1
        if n_cells > MOST_CELLS:
            raise ValueError(f"it has more than {MOST_CELLS:,} cells, empty ones included. Save what is filled as csv")
        if any(value is not None for value in row):
            yield [_cell_text(value) for value in row]


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.15g}"  # as many digits as are shown
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ", "minutes")
    return " ".join(str(value).split())
