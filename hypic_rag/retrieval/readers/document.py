"""What a reader gives: a document, or the reason why there is none."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from hypic_rag.retrieval.readers.pages import Pages


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


def clean(text: str) -> str:
    """Turn line ends to ``\\n``; drop a leading byte order mark and NULs, and replace
    lone surrogates (not encodable)."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def title_of_name(stem: str) -> str:
    """Return a file's name, without its suffix, as words: ``lease-flat_14b`` is "lease flat 14b". Dates keep theirs."""
    return " ".join(re.sub(r"(?<!\d)[-_]+|[-_]+(?!\d)", " ", stem).split()) or stem
