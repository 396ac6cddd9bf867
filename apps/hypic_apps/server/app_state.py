"""What the routes share: the engine and its loop, the database, where things lie."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from hypic_apps.server.auth.keys import Keys
from hypic_apps.server.auth.usage import KeyUsage
from hypic_apps.server.chat.engine_loop import EngineLoop
from hypic_apps.server.chat.logprobs import TokenTexts
from hypic_apps.server.chat.thread_pool import PreparationPool
from hypic_apps.server.collections.catalog import Collections
from hypic_apps.server.collections.readiness import Readiness
from hypic_apps.server.conversations.archive import ConversationArchive
from hypic_apps.server.observability.metrics import Metrics
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.config import Settings
from hypic_rag.engine import SegmentEngine
from hypic_rag.rag import Order, RagPipeline
from hypic_rag.rag.order_calibration import order_in_force

if TYPE_CHECKING:
    from hypic_rag.retrieval import Embedder


@dataclass
class Service:
    """folder: everything that the server keeps (HYPIC_HOME/server): database, collections, segments.

    rag: the path of questions, with finished turns of conversations. order: of passages that are found, where
    a request names none. started: seconds since 1970.
    """

    settings: Settings
    folder: Path
    engine: SegmentEngine
    embedder: "Embedder"
    loop: EngineLoop
    preparing: PreparationPool = field(default_factory=PreparationPool)
    started: int = field(default_factory=lambda: int(time.time()))
    rag: RagPipeline = field(init=False)
    order: Order = field(init=False)
    keys: Keys = field(init=False)
    usage: KeyUsage = field(init=False)
    metrics: Metrics = field(init=False)
    database: CollectionDatabase = field(init=False)
    collections: Collections = field(init=False)
    readiness: Readiness = field(init=False)
    conversations: ConversationArchive = field(init=False)

    @property
    def model_name(self) -> str:
        """What the model is called over HTTP."""
        return self.settings.served_model_name or self.engine.model_name

    @cached_property
    def token_texts(self) -> TokenTexts:
        """What single tokens are, for those who ask for their probabilities."""
        return TokenTexts(self.engine.tokenizer)

    def __post_init__(self) -> None:
        self.rag = RagPipeline(self.engine)
        self.order, _ = order_in_force(self.engine.fingerprint, self.settings.order)
        self.keys = Keys(self.folder)
        self.usage = KeyUsage(self.keys)
        self.loop.requests.on_used = self.usage.add
        self.metrics = Metrics(self.engine, self.loop)
        self.database = CollectionDatabase(self.folder / "server.sqlite")
        self.metrics.watch_queue(self.database)
        self.collections = Collections(
            self.settings, self.folder, self.engine, self.embedder, self.loop, self.database, self.metrics
        )
        self.readiness = Readiness(self.collections, self.engine)
        self.conversations = ConversationArchive(self.database)
        self.collections.removal.on_forget.append(self.rag.forget)


async def service(request: Request) -> Service:
    """Return the service: a route's dependency; asynchronous, as others are run in a thread."""
    found: Service = request.app.state.service
    return found


Serving = Annotated[Service, Depends(service)]
