"""Opens what the settings name: the engine with its cache, the store, a conversation.

torch and LlamaIndex are imported where they are needed, so that a store that is not there is told at once.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag.config import Settings, home, store_folder
from hypic_rag.errors import BadInput
from hypic_rag.paths import exists

if TYPE_CHECKING:
    from hypic_rag.engine import Policy, SegmentEngine
    from hypic_rag.engine.calibration import InForce
    from hypic_rag.rag import Session
    from hypic_rag.retrieval import Store


def say(text: str) -> None:
    """Progress goes to stderr: stdout has answers only."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def open_engine(
    settings: Settings, segments: Path | None = None, policy: "Policy | None" = None
) -> Iterator["SegmentEngine"]:
    """The engine, its segments cached in this folder, or in memory only. Without ``policy``, the one in force."""
    import transformers

    from hypic_rag import default_model
    from hypic_rag.cache import SegmentCache
    from hypic_rag.engine import SegmentEngine

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    if settings.model == "default":
        default_model.ensure(home(), progress=say)
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


def in_force(settings: Settings, engine: "SegmentEngine") -> "InForce":
    """The policy for the engine's model: what the settings give, else its calibration, else the default."""
    from hypic_rag.engine.calibration import policy_in_force

    return policy_in_force(
        engine.fingerprint, mode=settings.mode, seam_tokens=settings.seam_tokens, compose=settings.compose
    )


@contextlib.contextmanager
def open_store(settings: Settings, create: bool = False) -> Iterator[tuple["SegmentEngine", "Store"]]:
    """The engine and the store, fitting each other. Without ``create``, raises BadInput for a missing one."""
    folder = store_folder(settings.store)
    if not create and not exists(folder):
        raise BadInput(f"there is no store in {folder}: make one with hypic-rag ingest PATH...")

    from hypic_rag.retrieval import Embedder, Store

    embedder = None if settings.embedder is None else Embedder(settings.embedder)
    if not create:
        Store.open(folder, embedder=embedder).close()  # before the model, which takes seconds to load
    chunk_tokens = settings.chunk_tokens if create else None
    with (
        open_engine(settings, Store.segments_folder(folder)) as engine,
        Store.create_or_open(folder, engine, embedder=embedder, chunk_tokens=chunk_tokens) as store,
    ):
        yield engine, store


@contextlib.contextmanager
def open_conversation(settings: Settings) -> Iterator["Session"]:
    """A conversation with the store."""
    with open_store(settings) as (engine, store):
        from hypic_rag.engine import Sampling
        from hypic_rag.rag import Session, StoreSearch

        sampling = Sampling(settings.max_new_tokens, settings.temperature, settings.top_p, settings.seed)
        log_to = store.folder if settings.log_questions else None
        yield Session(engine, StoreSearch(store), engine.policy, sampling, settings.top_k, log_to)
