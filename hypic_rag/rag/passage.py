"""A piece of text to answer from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Passage:
    """A chunk that was found for a question, or a document that came with it.

    similarity: cosine to the question; None where it came with the question. id: "chunk:N", never given twice; empty
    likewise. metadata: of the document that it is a chunk of, and its ``doc_id`` and ``ordinal`` there, and its
    ``page_label`` where it has one.
    """

    title: str
    text: str
    similarity: float | None = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def place(self) -> tuple[str, int] | None:
        """Where it stands, if it is a chunk."""
        return chunk_place(self.metadata)

    @property
    def page_label(self) -> str | None:
        """The page or pages that it is on ("7", "7–8"), where that is known."""
        label = self.metadata.get("page_label")
        return str(label) if isinstance(label, str | int) and label != "" else None


def chunk_place(metadata: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the document's id and the chunk's number there; None of what is no chunk of a store."""
    doc_id, ordinal = metadata.get("doc_id"), metadata.get("ordinal")
    return (doc_id, ordinal) if isinstance(doc_id, str) and isinstance(ordinal, int) else None
