"""A store as a LlamaIndex retriever."""

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.background import result_of
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.search import Retriever, StoreSearch
from hypic_rag.retrieval.store import Store


class StoreRetriever(BaseRetriever):
    """The chunks of a store nearest to a question, the nearest first; scores are cosine similarities.

    Sees what other processes ingest from one question to the next. An empty store gives no nodes.
    """

    def __init__(
        self,
        store: Store,
        similarity_top_k: int = 5,
        callback_manager: CallbackManager | None = None,
        *,
        search: Retriever | None = None,
    ):
        """search: finds the passages, in the place of the store alone: a collection's knows what was deleted."""
        if similarity_top_k < 1:
            raise BadInput(f"top-k is {similarity_top_k}; give 1 or more")
        super().__init__(callback_manager=callback_manager)
        self.store = store
        self._search = search or StoreSearch(store)
        self.similarity_top_k = similarity_top_k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._search.retrieve(query_bundle.query_str, self.similarity_top_k)
        return [NodeWithScore(node=node_of(one), score=one.similarity) for one in found]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await result_of(lambda stop: self._retrieve(query_bundle))


def node_of(found: Passage) -> TextNode:
    """Return a node whose id is the passage's."""
    source = RelatedNodeInfo(node_id=found.metadata["doc_id"])
    return TextNode(
        id_=found.id,
        text=found.text,
        metadata=dict(found.metadata),
        relationships={NodeRelationship.SOURCE: source},
    )
