"""A collection as a place to look for passages, for a process beside the server."""

from dataclasses import dataclass, field

from hypic_rag.collections.opening import Collection
from hypic_rag.collections.rows import searchable
from hypic_rag.engine import SegmentEngine
from hypic_rag.rag import Passage, find_passages
from hypic_rag.rag.search import DEFAULT_OPTIONS, SearchOptions
from hypic_rag.retrieval.segments import stored_segment
from hypic_rag.retrieval.store import Store


@dataclass(frozen=True)
class CollectionSearch:
    """A collection as a Retriever: of files that a server would find, too."""

    collection: Collection
    store: Store
    options: SearchOptions = DEFAULT_OPTIONS
    _found: set[Passage] = field(default_factory=set, init=False)

    @property
    def namespace(self) -> str:
        return self.collection.namespace

    def retrieve(self, question: str, top_k: int) -> list[Passage]:
        found = self._searchable(find_passages(self.store, question, top_k, self.options))
        self._found.update(found)
        return found

    def forget_deleted(self, engine: SegmentEngine) -> None:
        """Forget the segments of what was found and a server has deleted meanwhile: this
        process may have made them again."""
        here = {passage.id for passage in self._searchable(list(self._found))}
        lost = [passage for passage in self._found if passage.id not in here]
        if lost:
            stored = filter(None, (stored_segment(engine, passage.title, passage.text) for passage in lost))
            engine.forget([key.digest for _, key in stored])

    def _searchable(self, passages: list[Passage]) -> list[Passage]:
        return searchable(self.collection.database, self.collection.id, passages)
