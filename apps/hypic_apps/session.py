"""Opens what the settings name: the engine with its cache, the store or collection, a conversation.

torch and LlamaIndex are imported where they are needed, so that a store that is not there is told at once.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_rag.config import Settings, home, store_folder
from hypic_rag.errors import BadInput
from hypic_rag.paths import exists
from hypic_rag.rag.unanswered import no_documents

if TYPE_CHECKING:
    from hypic_rag.cache import DiskTier
    from hypic_rag.collections.ledger import Ledger
    from hypic_rag.engine import Policy, SegmentEngine
    from hypic_rag.engine.calibration import ActivePolicy
    from hypic_rag.rag import Retriever, Session
    from hypic_rag.retrieval import Store


def say(text: str) -> None:
    """Print progress to stderr: stdout has answers only."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def open_engine(
    settings: Settings,
    segments: Path | None = None,
    policy: "Policy | None" = None,
    tell: Callable[[str], None] = say,
) -> Iterator["SegmentEngine"]:
    """Open the engine, its segments cached in this folder, or in memory only. Without ``policy``, the one in force.

    tell: is told of what takes long.
    """
    import transformers

    from hypic_rag import default_model
    from hypic_rag.cache import SegmentCache
    from hypic_rag.engine import SegmentEngine

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if settings.model == "default":
        default_model.ensure(home(), progress=tell)
    with SegmentCache.open(segments, settings.host_memory, settings.disk_budget, settings.remote) as cache:
        engine = SegmentEngine.from_pretrained(
            settings.model,
            cache=cache,
            policy=policy,
            codec=settings.codec,
            conversation_budget=settings.conversation_memory,
            dtype=settings.torch_dtype,
            device=settings.torch_device,
            device_memory=settings.device_memory,
        )
        if policy is None:
            engine.policy = in_force(settings, engine).policy
        yield engine


def in_force(settings: Settings, engine: "SegmentEngine") -> "ActivePolicy":
    """Return the policy for the engine's model: what the settings give, else its calibration, else the default."""
    from hypic_rag.engine.calibration import policy_in_force

    return policy_in_force(
        engine.fingerprint, mode=settings.mode, seam_tokens=settings.seam_tokens, compose=settings.compose
    )


@contextlib.contextmanager
def open_store(settings: Settings, create: bool = False) -> Iterator[tuple["SegmentEngine", "Store"]]:
    """Open the engine and the store, fitting each other. Without ``create``, raises BadInput for a missing one."""
    assert settings.store is not None
    folder = store_folder(settings.store)
    if not create and not exists(folder):
        raise BadInput(
            f"there is no store in {folder}: make one with hypic-rag ingest PATH... --store {settings.store}"
        )

    from hypic_rag.retrieval import Embedder, Store

    embedder = None if settings.embedder is None else Embedder(settings.embedder)
    if not create:
        Store.open(folder, embedder=embedder).close()  # before the model, which takes seconds to load
    with (
        open_engine(settings, Store.segments_folder(folder)) as engine,
        _store(settings, folder, engine, create) as store,
    ):
        yield engine, store


@contextlib.contextmanager
def open_search(settings: Settings) -> Iterator[tuple["SegmentEngine", "Store", "Retriever"]]:
    """Open what questions are answered from: the settings' collection, or their store.
    Raises BadInput for a missing one."""
    if settings.store is not None:
        with open_store(settings) as (engine, store):
            from hypic_rag.rag import SearchOptions, StoreSearch

            yield engine, store, StoreSearch(store, SearchOptions.of(settings))
        return

    from hypic_rag.collections.opening import named

    with named(settings) as collection:
        if not exists(collection.folder / "store.json"):
            raise BadInput(no_documents("collection", collection.name))

        from hypic_rag.collections.search import CollectionSearch
        from hypic_rag.rag import SearchOptions
        from hypic_rag.retrieval import Embedder, Store

        embedder = None if settings.embedder is None else Embedder(settings.embedder)
        Store.open(collection.folder, embedder=embedder).close()
        with (
            open_engine(settings, Store.segments_folder(collection.server)) as engine,
            _store(settings, collection.folder, engine) as store,
        ):
            within, search = (
                engine.within(collection.namespace),
                CollectionSearch(collection, store, SearchOptions.of(settings)),
            )
            try:
                yield within, store, search
            finally:
                search.forget_deleted(within)


@contextlib.contextmanager
def open_ingest(settings: Settings) -> Iterator[tuple["SegmentEngine", "Store", "Ledger | None"]]:
    """Open where documents are put, made where it is missing: the settings' collection with the ledger of its files, or
    their store without one. Raises BadInput where a server uses the collection."""
    if settings.store is not None:
        with open_store(settings, create=True) as (engine, store):
            yield engine, store, None
    else:
        with open_to_write(settings) as opened:
            yield opened


@contextlib.contextmanager
def open_adoption(settings: Settings) -> Iterator[tuple["Store", "DiskTier", "SegmentEngine", "Store", "Ledger"]]:
    """Open the settings' store and its segments, to be read, and their collection as ``open_ingest`` gives it, made as
    that store is. Raises BadInput for a missing store, StoreMismatch for one of another model."""
    assert settings.store is not None
    folder = store_folder(settings.store)
    if not exists(folder):
        raise BadInput(f"there is no store in {folder}: ls {folder.parent} shows which there are")

    from hypic_rag.cache import DiskTier
    from hypic_rag.retrieval import Store

    with (
        Store.open(folder) as source,
        contextlib.closing(DiskTier(Store.segments_folder(folder))) as segments,
        open_to_write(settings, like=source) as (engine, store, ledger),
    ):
        yield source, segments, engine, store, ledger


@contextlib.contextmanager
def open_to_write(
    settings: Settings, like: "Store | None" = None
) -> Iterator[tuple["SegmentEngine", "Store", "Ledger"]]:
    """Claim the settings' collection for this process, made where it is missing.

    like: a store by whose embedder and sizes a new collection is made. Raises StoreMismatch for another model's.
    """
    from hypic_rag.collections.opening import claimed_to_write, server_folder
    from hypic_rag.retrieval import Embedder, Store

    embedder = None if settings.embedder is None else Embedder(settings.embedder)
    chunk_tokens, chunk_overlap = settings.chunk_tokens, None
    if like is not None:
        embedder, chunk_tokens, chunk_overlap = like.embedder, like.manifest.chunk_tokens, like.manifest.chunk_overlap
    with (
        claimed_to_write(settings) as found_or_made,
        open_engine(settings, Store.segments_folder(server_folder())) as engine,
    ):
        from hypic_rag.collections.ledger import Ledger

        if like is not None:
            like.check_engine(engine)
        collection = found_or_made()
        within, folder = engine.within(collection.namespace), collection.folder
        _tell_of_renewal(folder, engine)
        sizes = {"chunk_tokens": chunk_tokens, "chunk_overlap": chunk_overlap}
        with Store.create_or_open(folder, within, embedder=embedder, **sizes, renew=True) as store:
            yield within, store, Ledger(collection, store, within)


@contextlib.contextmanager
def open_conversation(settings: Settings) -> Iterator["Session"]:
    """Open a conversation with the collection or the store."""
    with open_search(settings) as (engine, store, search):
        from hypic_rag.engine import Sampling
        from hypic_rag.rag import Session
        from hypic_rag.rag.order_calibration import order_in_force

        sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed)
        if not store.counts()[1]:
            named_so = settings.store or settings.collection or "default"
            raise BadInput(no_documents("store" if settings.store else "collection", named_so))
        log_to = store.folder if settings.log_questions else None
        yield Session(
            engine,
            search,
            engine.policy,
            sampling,
            settings.top_k,
            log_to,
            order_in_force(engine.fingerprint, settings.order)[0],
            settings.max_new_tokens,
        )


def is_there(settings: Settings) -> bool:
    """Return whether the settings' collection or store is there. Raises BadInput where it
    cannot be told, or be named so."""
    if settings.store is not None:
        return exists(store_folder(settings.store))

    from hypic_rag.collections import opening

    return opening.is_there(settings)


def documents_folder(settings: Settings) -> Path:
    """Return where the settings' collection or store lies; need not exist, if it is a store's. Raises BadInput."""
    if settings.store is not None:
        return store_folder(settings.store)

    from hypic_rag.collections.opening import named

    with named(settings) as collection:
        return collection.folder


def _store(settings: Settings, folder: Path, engine: "SegmentEngine", create: bool = False) -> "Store":
    from hypic_rag.retrieval import Embedder, Store

    embedder = None if settings.embedder is None else Embedder(settings.embedder)
    chunk_tokens = settings.chunk_tokens if create else None
    if create:
        _tell_of_renewal(folder, engine)
    return Store.create_or_open(folder, engine, embedder=embedder, chunk_tokens=chunk_tokens, renew=create)


def _tell_of_renewal(folder: Path, engine: "SegmentEngine") -> None:
    """Say so where what is in a store is about to be prefilled by other weights of its model."""
    from hypic_rag.retrieval.manifest import Manifest

    manifest = Manifest.read(folder)
    if manifest is not None and manifest.is_of(engine) and manifest.model_fingerprint != engine.fingerprint:
        say(
            f"what {folder} has was prefilled by other weights of the model {manifest.model} than it has now: these "
            f"segments are removed, and made again"
        )
