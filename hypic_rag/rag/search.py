"""Which passages a question is answered from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hypic_rag.errors import BadInput
from hypic_rag.rag.passage import Passage
from hypic_rag.retrieval.readers.document import clean
from hypic_rag.retrieval.store import Store


class Retriever(Protocol):
    """Somewhere to look for passages. namespace: under which their segments are cached."""

    @property
    def namespace(self) -> str: ...

    def retrieve(self, question: str, top_k: int) -> Sequence[Passage]:
        """Return the passages nearest to the question, the nearest first; none where there are none. Block."""
        ...


def find_passages(store: Store, question: str, top_k: int) -> list[Passage]:
    """Return the chunks of a store nearest to the question, the nearest first; none of an empty store.

    Sees what other processes ingest from one question to the next. Raises BadInput for an empty question.
    """
    question = checked(question, top_k)
    if not store.counts()[1]:
        return []  # before the embedder is loaded
    found = store.search(store.embedder.embed_query(question), top_k)
    return [
        Passage(
            one.chunk.title,
            one.chunk.text,
            one.similarity,
            f"chunk:{one.chunk.id}",
            {**one.metadata, "title": one.chunk.title, "doc_id": one.chunk.doc_id, "ordinal": one.chunk.ordinal},
        )
        for one in found
    ]


def checked(question: str, top_k: int) -> str:
    """Return the question without what is no text. Raises BadInput where nothing is left, or ``top_k`` is below 1."""
    if top_k < 1:
        raise BadInput(f"top-k is {top_k}; give 1 or more")
    question = clean(question).strip()
    if not question:
        raise BadInput('the question is empty: ask something, such as "Who signed the treaty?"')
    return question


@dataclass(frozen=True)
class StoreSearch:
    """A store as a Retriever."""

    store: Store
    namespace: str = ""

    def retrieve(self, question: str, top_k: int) -> list[Passage]:
        return find_passages(self.store, question, top_k)
