"""A collection of the server as a place to look for passages."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hypic_apps.server.collections.store_pool import StorePool
from hypic_apps.server.errors import ApiError
from hypic_rag.collections import rows
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.errors import BadInput, StoreMismatch
from hypic_rag.rag import Passage, SearchOptions, find_passages
from hypic_rag.rag.search import checked
from hypic_rag.retrieval import Store


@dataclass(frozen=True)
class CollectionRetriever:
    """A Retriever. folder: of the collection's store, which need not be there yet. namespace: of its segments.
    least: cosine of a passage, whatever words it has."""

    id: str
    folder: Path
    namespace: str
    stores: StorePool
    database: CollectionDatabase
    options: SearchOptions
    least: float = -2.0

    def at_least(self, similarity: float | None) -> "CollectionRetriever":
        """Return one that finds nothing below this cosine; None: what the options say."""
        if similarity is None:
            return self
        return replace(self, least=similarity, options=replace(self.options, min_similarity=similarity))

    def retrieve(self, question: str, top_k: int) -> list[Passage]:
        """Return the nearest chunks, the nearest first; blocks. Raises BadInput for an empty question, ApiError."""
        question = checked(question, top_k)
        if not StorePool.exists(self.folder):
            return []
        try:
            with opened(self.stores, self.folder) as store:
                found = find_passages(store, question, top_k, self.options)
        except BadInput:
            if StorePool.exists(self.folder):
                raise
            return []  # removed meanwhile
        found = [one for one in found if one.similarity is None or one.similarity >= self.least]
        return rows.searchable(self.database, self.id, found)

    @property
    def is_empty(self) -> bool:
        """Whether the collection has no chunks, in which anything could be found; blocks."""
        if not StorePool.exists(self.folder):
            return True
        with opened(self.stores, self.folder) as store:
            return store.counts()[1] == 0


@contextlib.contextmanager
def opened(stores: StorePool, folder: Path) -> Iterator[Store]:
    """Open the store of a collection that has one already. Raises ApiError for one of another model or embedder."""
    try:
        with stores.use(folder) as store:
            yield store
    except StoreMismatch as error:
        raise ApiError(
            409,
            f"the collection was made with another model or embedder than the server has now: {error}",
            code="collection_mismatch",
        ) from error
