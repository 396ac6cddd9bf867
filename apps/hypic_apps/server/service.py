"""What the routes share: the engine and its loop, the database, where things lie."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from hypic_apps.server.collections import Collections
from hypic_apps.server.database import Database
from hypic_apps.server.keys import Keys
from hypic_apps.server.loop import EngineLoop
from hypic_apps.server.metrics import Metrics
from hypic_apps.server.preparing import Preparing
from hypic_apps.server.turns import Turns
from hypic_rag.config import Settings
from hypic_rag.engine import SegmentEngine
from hypic_rag.prompt import Ids

if TYPE_CHECKING:
    from hypic_rag.retrieval import Embedder

KEPT_LENGTH = 4096  # characters; longer documents are not chunks


@dataclass
class Service:
    """folder: everything that the server keeps (HYPIC_HOME/server): database, collections, segments.

    turns: finished turns of conversations. started: seconds since 1970.
    """

    settings: Settings
    folder: Path
    engine: SegmentEngine
    embedder: "Embedder"
    loop: EngineLoop
    turns: Turns = field(default_factory=Turns)
    preparing: Preparing = field(default_factory=Preparing)
    started: int = field(default_factory=lambda: int(time.time()))
    keys: Keys = field(init=False)
    metrics: Metrics = field(init=False)
    database: Database = field(init=False)
    collections: Collections = field(init=False)
    _ids_of: Callable[[str, str, str], Ids] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        form = self.engine.format
        ids_of = lru_cache(maxsize=1024)(lambda namespace, text, title: form.document(text, title))
        self._ids_of = ids_of
        self.keys = Keys(self.folder)
        self.metrics = Metrics(self.engine, self.loop)
        self.database = Database(self.folder / "server.sqlite")
        self.collections = Collections(
            self.settings, self.folder, self.engine, self.embedder, self.loop, self.database, self.metrics
        )
        self.collections.removal.on_forget += [self.turns.forget, lambda namespace: ids_of.cache_clear()]

    @cached_property
    def token_characters(self) -> int:
        """The most characters that one token stands for."""
        return max(map(len, self.engine.tokenizer.get_vocab()))

    def document_ids(self, namespace: str, title: str, text: str) -> Ids:
        """Of its segment. Those of chunks are kept, as the same ones are found again and again; by namespace, so that
        nobody can tell by the time it takes what others have."""
        title = " ".join(title.split())
        if len(text) > KEPT_LENGTH:
            return self.engine.format.document(text, title)
        return self._ids_of(namespace, text, title)


async def service(request: Request) -> Service:
    """A route's dependency; asynchronous, as others are run in a thread."""
    found: Service = request.app.state.service
    return found


Serving = Annotated[Service, Depends(service)]
