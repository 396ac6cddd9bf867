"""Which passages a question is answered from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from hypic_rag.config import Settings
from hypic_rag.errors import BadInput
from hypic_rag.prompt import asked_question
from hypic_rag.rag.passage import Passage
from hypic_rag.retrieval.duplicates import first_of_each
from hypic_rag.retrieval.fusion import Method
from hypic_rag.retrieval.readers.document import clean
from hypic_rag.retrieval.reranker import Reranker
from hypic_rag.retrieval.store import Found, Store

ENOUGH_WORDS = 0.5  # of the question's, by their inverse document frequencies
RERANKED = 50  # the most, but for top_k, that a reranker reads for a question


class Retriever(Protocol):
    """Somewhere to look for passages. namespace: under which their segments are cached."""

    @property
    def namespace(self) -> str: ...

    def retrieve(self, question: str, top_k: int) -> Sequence[Passage]:
        """Return the passages nearest to the question, the nearest first; none where none is relevant. Block."""
        ...


@dataclass(frozen=True)
class SearchOptions:
    """How passages are found.

    method: by vectors, by words, or by both. min_similarity: cosine that the nearest of the relevant passages has at
    least, and the others half of it, unless they have the question's words; None for what suits the embedder.
    neighbours: how many chunks before and after each that is found come with it. reranker: ranks again what was found.
    """

    method: Method = "hybrid"
    min_similarity: float | None = None
    neighbours: int = 0
    reranker: Reranker | None = None

    @classmethod
    def of(cls, settings: Settings) -> "SearchOptions":
        reranker = None if settings.reranker is None else Reranker(settings.reranker)
        return cls(cast(Method, settings.search), settings.min_similarity, settings.neighbours, reranker)


DEFAULT_OPTIONS = SearchOptions()


def find_passages(store: Store, question: str, top_k: int, options: SearchOptions = DEFAULT_OPTIONS) -> list[Passage]:
    """Return the up to ``top_k`` chunks of a store nearest to the question, the nearest first, neighbours beside each.

    None of an empty store, and none where nothing is relevant. What says the same as a nearer one is left out.
    Sees what other processes ingest from one question to the next. Raises BadInput for an empty question.
    """
    question = checked(question, top_k)
    if not store.counts()[1]:
        return []  # before the embedder is loaded
    n_wanted = max(RERANKED, top_k) if options.reranker else 2 * top_k  # some of them repeat others
    vector = store.embedder.embed_query(question)
    found = store.search(vector, n_wanted, question, options.method)
    floor = store.embedder.min_similarity if options.min_similarity is None else options.min_similarity
    found = _relevant(store, question, found, floor)
    found = [found[i] for i in first_of_each([(one.chunk.title, one.chunk.text) for one in found])]
    if options.reranker is not None:
        scores = options.reranker.scores(question, [_whole_text(one) for one in found])
        found = [found[i] for i in sorted(range(len(found)), key=lambda i: -scores[i])]
    found = found[:top_k]
    if options.neighbours:
        found = store.with_neighbours(found, options.neighbours, vector)
    return [
        Passage(
            one.chunk.title,
            one.chunk.text,
            one.similarity,
            f"chunk:{one.chunk.id}",
            _metadata(one),
        )
        for one in found
    ]


def _relevant(store: Store, question: str, found: list[Found], floor: float) -> list[Found]:
    """Leave out what is under the floor: half of it, where another passage reaches it. Where a passage has enough of
    the question's words its vector does not count: those of names, numbers and single words say little.

    Measured on HotpotQA with MiniLM (``hypic-eval retrieval``): a floor relative to the nearest costs recall, since the
    second of two paragraphs that answer together is often far from the question.
    """
    if any(one.similarity >= floor for one in found):
        floor /= 2
    weak = [one for one in found if one.similarity < floor]
    left_out = {
        one.chunk.id for one, share in zip(weak, store.coverage(question, weak), strict=True) if share < ENOUGH_WORDS
    }
    return [one for one in found if one.chunk.id not in left_out]


def _metadata(one: Found) -> dict[str, Any]:
    chunk = one.chunk
    of_chunk = {"title": chunk.title, "doc_id": chunk.doc_id, "ordinal": chunk.ordinal}
    return one.metadata | of_chunk | ({"page_label": chunk.page_label} if chunk.page_label else {})


def _whole_text(one: Found) -> str:
    return f"{one.chunk.title}\n{one.chunk.text}" if one.chunk.title else one.chunk.text


def checked(question: str, top_k: int) -> str:
    """Return the question without what is no text. Raises BadInput where nothing is left, or ``top_k`` is below 1."""
    if top_k < 1:
        raise BadInput(f"top-k is {top_k}; give 1 or more")
    return asked_question(clean(question).strip())


@dataclass(frozen=True)
class StoreSearch:
    """A store as a Retriever."""

    store: Store
    options: SearchOptions = DEFAULT_OPTIONS
    namespace: str = ""

    def retrieve(self, question: str, top_k: int) -> list[Passage]:
        return find_passages(self.store, question, top_k, self.options)
