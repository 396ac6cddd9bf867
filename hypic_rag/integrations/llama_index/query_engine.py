"""HypicQueryEngine: from a LlamaIndex index, or from a store, to answers out of cached segments."""

import contextlib
import os
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal, NoReturn

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine

from hypic_rag.collections.opening import find
from hypic_rag.collections.search import CollectionSearch
from hypic_rag.config import Settings
from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.retriever import StoreRetriever
from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer
from hypic_rag.rag.order import Order
from hypic_rag.rag.order_calibration import order_in_force
from hypic_rag.rag.search import DEFAULT_OPTIONS, SearchOptions, StoreSearch
from hypic_rag.retrieval.embedder import Embedder
from hypic_rag.retrieval.store import Store


class HypicQueryEngine(RetrieverQueryEngine):
    """A RetrieverQueryEngine whose nodes become segments; never asks LlamaIndex for a default model.

    ``query`` and ``aquery`` return LlamaIndex's responses (streaming ones where made so), with what came
    from the cache under ``metadata["hypic"]`` (see HypicSynthesizer) and ``SegmentsAssembled`` among the
    events.
    """

    @classmethod
    def from_index(
        cls,
        index: BaseIndex[Any],
        llm: HypicLLM,
        similarity_top_k: int = 5,
        streaming: bool = False,
        *,
        system: str | None = None,
        order: Order | Literal["calibrated"] | None = "calibrated",
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> "HypicQueryEngine":
        """Make one over any LlamaIndex index. Its segments are prefilled when first asked for, or by PrefillSegments.

        system: the leading text, in the place of the model's own. order: of the nodes in the prompt; without, the
        model's calibrated one, where it has one, else nearest-last; None for that in which they come, as from a
        postprocessor that arranges them.
        """
        retriever = index.as_retriever(similarity_top_k=similarity_top_k)
        return cls._over(retriever, llm, streaming, system, order, node_postprocessors, callback_manager)

    @classmethod
    def from_store(
        cls,
        folder: str | os.PathLike[str],
        llm: HypicLLM | None = None,
        similarity_top_k: int = 5,
        streaming: bool = False,
        *,
        embedder: Embedder | None = None,
        options: SearchOptions = DEFAULT_OPTIONS,
        system: str | None = None,
        order: Order | Literal["calibrated"] | None = "calibrated",
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> "HypicQueryEngine":
        """Make one over the folder that ``hypic-rag ingest`` made. Without ``llm``, the model that the store names.

        Make an ``llm`` of your own with ``HypicLLM.for_store(folder, ...)``: one with another cache
        computes every segment anew. Raises BadInput where there is no store, StoreMismatch for another
        model or embedder.
        """
        store = Store.open(folder, embedder=embedder)
        try:
            llm = llm or HypicLLM.for_store(folder)
            store.check_engine(llm.engine)
            if not _has_cache(llm, Store.segments_folder(store.folder)):
                _warn_of_another_cache(str(store.folder), f"HypicLLM.for_store({str(store.folder)!r})")
        except Exception:
            store.close()
            raise
        search = StoreSearch(store, options)
        retriever = StoreRetriever(store, similarity_top_k, callback_manager, search=search)
        return cls._over(retriever, llm, streaming, system, order, node_postprocessors, callback_manager)

    @classmethod
    def from_collection(
        cls,
        name: str = "default",
        llm: HypicLLM | None = None,
        similarity_top_k: int = 5,
        streaming: bool = False,
        *,
        tenant: str = "local",
        embedder: Embedder | None = None,
        options: SearchOptions = DEFAULT_OPTIONS,
        system: str | None = None,
        order: Order | Literal["calibrated"] | None = "calibrated",
        node_postprocessors: list[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> "HypicQueryEngine":
        """Answer from a collection under HYPIC_HOME: what ``hypic-rag ingest`` and ``hypic-rag serve`` put there.

        Works beside a running server, and sees what comes and goes from one question to the next. llm: without, the
        model that the collection names; make one of your own with ``HypicLLM.for_collection(name, ...)``. Raises
        BadInput where there is no such collection or nothing in it, StoreMismatch for another model or embedder.
        """
        with contextlib.ExitStack() as opened:
            collection = find(Settings(collection=name, tenant=tenant))
            opened.callback(collection.database.close)
            store = opened.enter_context(Store.open(collection.folder, embedder=embedder))
            llm = llm or HypicLLM.for_collection(name, tenant=tenant)
            store.check_engine(llm.engine)
            segments = Store.segments_folder(collection.server)
            if llm.engine.namespace != collection.namespace or not _has_cache(llm, segments):
                _warn_of_another_cache(f"the collection {name}", f"HypicLLM.for_collection({name!r})")
            search = CollectionSearch(collection, store, options)
            retriever = StoreRetriever(store, similarity_top_k, callback_manager, search=search)
            opened.callback(search.forget_deleted, llm.engine)
            weakref.finalize(retriever, opened.pop_all().close)  # with the last reference, or as the process ends
        return cls._over(retriever, llm, streaming, system, order, node_postprocessors, callback_manager)

    def __getstate__(self) -> NoReturn:
        raise BadInput(
            "a HypicQueryEngine holds a model and can be neither copied nor sent to another process: "
            "make another one there with HypicQueryEngine.from_collection(name), "
            "from_store(folder) or from_index(index, llm)"
        )

    def with_retriever(self, retriever: BaseRetriever) -> "HypicQueryEngine":
        return type(self)(
            retriever=retriever,
            response_synthesizer=self._response_synthesizer,
            callback_manager=self.callback_manager,
            node_postprocessors=self._node_postprocessors,
        )

    @classmethod
    def _over(
        cls,
        retriever: BaseRetriever,
        llm: HypicLLM,
        streaming: bool,
        system: str | None,
        order: Order | Literal["calibrated"] | None,
        node_postprocessors: list[BaseNodePostprocessor] | None,
        callback_manager: CallbackManager | None,
    ) -> "HypicQueryEngine":
        if order == "calibrated":
            order, _ = order_in_force(llm.engine.fingerprint, None)
        synthesizer = HypicSynthesizer(llm, streaming, system, callback_manager=callback_manager, order=order)
        return cls(
            retriever=retriever,
            response_synthesizer=synthesizer,
            callback_manager=callback_manager,
            node_postprocessors=node_postprocessors,
        )


def _has_cache(llm: HypicLLM, segments: Path) -> bool:
    disk = llm.engine.cache.disk
    return disk is not None and disk.folder.resolve() == segments.resolve()


def _warn_of_another_cache(whose: str, remedy: str) -> None:
    warnings.warn(
        f"this HypicLLM does not read the segments of {whose}, so what was prefilled there will be computed again. "
        f"Make it with {remedy}, or leave llm out.",
        stacklevel=3,
    )
