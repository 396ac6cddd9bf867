"""What a reader gives: a document, or the reason why there is none."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypic_rag.paths import path_text
from hypic_rag.retrieval.readers.pages import Pages

CODE = "code"
"""The format of source code, whose title is its file's whole name."""
PLACEHOLDER = re.compile(  # what programs write where nobody gave a title
    r"\(?(anonymous|untitled|unspecified|unknown|no title|title|document|presentation|powerpoint presentation|slide"
    r"|word document|book|workbook)\)?[-_ ]*\d*"
    r"|microsoft (office )?(word|powerpoint|excel)\b.*"
    r"|.*\.(docx?|pptx?|xlsx?|od[pst]|rtf|indd|qxd|tex|dvi|fm|wpd|pages|html?|pdf)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class SourceDocument:
    """One document as read, before it is split.

    doc_id: stable between runs: the absolute path of the file; for JSON lines followed by ``#`` and the row's
    own id, or else its line number (``line 7`` where another row has the id 7).
    title: "" if there is none. text: never blank; lines end in ``\\n``.
    metadata: JSON values only; for all ``path`` (the file's, absolute) and ``format``; ``n_pages`` for a PDF;
    a row's other fields. pages: where those of a PDF begin, or of a text with form feeds.
    """

    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    pages: Pages = ()

    @property
    def content_hash(self) -> str:
        """Hex sha256 over title, text, metadata and pages: another hash means the document has changed."""
        content = json.dumps([self.title, self.text, self.metadata, *self.pages], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class ReadFailure:
    """Why a file, or one line of it, gave no document.

    skipped: passed over as it should be (hidden, empty, binary, of an unread kind): a note, no error.
    line: counted from 1, for JSON lines.
    is_hidden: not looked at, nor what is below it. same_as: the path under which it is read instead.
    """

    path: str
    reason: str
    line: int | None = None
    skipped: bool = False
    is_hidden: bool = False
    same_as: str = ""

    @property
    def says_nothing(self) -> bool:
        """What is at this path, or below it, is not known: it may all be there still."""
        return self.is_hidden or not self.skipped

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.reason}"


def whole_file(
    path: Path, kind: str, title: str, text: str, pages: Pages = (), **metadata: Any
) -> SourceDocument | ReadFailure:
    """Return the document that a file is, or a failure where it is blank. Without a title it has the file's name."""
    text, name = clean(text), path_text(path)
    if not text.strip():
        return ReadFailure(name, "is empty", skipped=True)
    title = " ".join(clean(title).split())
    if not title or (kind != "md" and PLACEHOLDER.fullmatch(title)):  # of Markdown, it is a heading
        title = title_of_file(path_text(Path(path.name)), kind)
    return SourceDocument(name, title, text, {"path": name, "format": kind, **metadata}, pages)


def clean(text: str) -> str:
    """Turn line ends to ``\\n``; drop a leading byte order mark and NULs, and replace
    lone surrogates (not encodable)."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def title_of_file(name: str, kind: str) -> str:
    """Return the title of a file of this name and format that has none of its own."""
    return name if kind == CODE else title_of_name(Path(name).stem)


def title_of_name(stem: str) -> str:
    """Return a file's name, without its suffix, as words: ``lease-flat_14b`` is "lease flat 14b". Dates keep theirs."""
    return " ".join(re.sub(r"(?<!\d)[-_]+|[-_]+(?!\d)", " ", stem).split()) or stem
