"""A question's one path: retrieve, fit into a prompt, answer, go on. Knows no LlamaIndex, HTTP or terminal."""

from typing import TYPE_CHECKING

from hypic_rag.lazy_import import lazy_exports

if TYPE_CHECKING:
    from hypic_rag.rag.order import DEFAULT_ORDER as DEFAULT_ORDER
    from hypic_rag.rag.order import Order as Order
    from hypic_rag.rag.order import arrange as arrange
    from hypic_rag.rag.passage import Passage as Passage
    from hypic_rag.rag.pipeline import NothingFound as NothingFound
    from hypic_rag.rag.pipeline import PreparedRequest as PreparedRequest
    from hypic_rag.rag.pipeline import RagPipeline as RagPipeline
    from hypic_rag.rag.pipeline import RagRequest as RagRequest
    from hypic_rag.rag.prompting import prompt_over as prompt_over
    from hypic_rag.rag.search import Retriever as Retriever
    from hypic_rag.rag.search import SearchOptions as SearchOptions
    from hypic_rag.rag.search import StoreSearch as StoreSearch
    from hypic_rag.rag.search import find_passages as find_passages
    from hypic_rag.rag.session import OutOfContext as OutOfContext
    from hypic_rag.rag.session import Session as Session
    from hypic_rag.rag.turns import Message as Message

_MODULES = {
    "DEFAULT_ORDER": "order",
    "Order": "order",
    "SearchOptions": "search",
    "arrange": "order",
    "RagRequest": "pipeline",
    "Message": "turns",
    "NothingFound": "pipeline",
    "OutOfContext": "session",
    "Passage": "passage",
    "RagPipeline": "pipeline",
    "PreparedRequest": "pipeline",
    "Retriever": "search",
    "Session": "session",
    "StoreSearch": "search",
    "find_passages": "search",
    "prompt_over": "prompting",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_exports(__name__, _MODULES)
