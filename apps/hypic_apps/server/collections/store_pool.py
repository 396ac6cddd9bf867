"""The stores of collections: opened when needed, kept open, the longest unused closed."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypic_rag.engine import SegmentEngine
from hypic_rag.paths import exists
from hypic_rag.retrieval import Embedder, Store
from hypic_rag.retrieval.manifest import FILE

MOST_OPEN = 32


@dataclass(eq=False)
class _Open:
    n_users: int = 0
    store: Store | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)


class StorePool:
    """At most ``most`` are open, and those in use. For any number of threads."""

    def __init__(
        self, engine: SegmentEngine, embedder: Embedder, chunk_tokens: int | None, most: int = MOST_OPEN
    ) -> None:
        self._engine, self._embedder, self._chunk_tokens, self._most = engine, embedder, chunk_tokens, most
        self._open: OrderedDict[Path, _Open] = OrderedDict()  # the longest unused first
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def use(self, folder: Path, create: bool = False) -> Iterator[Store]:
        """Open the store in ``folder``, or share it where it is open. Raises BadInput where there is none and none is
        to be made, StoreMismatch where it was made with another model or embedder, StoreDamaged."""
        with self._changed:
            found = self._open.setdefault(folder, _Open())
            found.n_users += 1
            self._open.move_to_end(folder)
        try:
            with found.opening:
                if found.store is None:
                    found.store = self._opened(folder, create)
            yield found.store
        finally:
            with self._changed:
                found.n_users -= 1
                self._close_unused()
                self._changed.notify_all()

    def drop(self, folder: Path) -> None:
        """Close a store as soon as nobody uses it; waits for that. The caller sees to it that nobody comes anew."""
        with self._changed:
            self._changed.wait_for(lambda: folder not in self._open or not self._open[folder].n_users)
            found = self._open.pop(folder, None)
        if found is not None and found.store is not None:
            found.store.close()

    def close(self) -> None:
        with self._changed:
            folders = list(self._open)
        for folder in folders:
            self.drop(folder)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Return whether there is a store. Raises BadInput where that cannot be told."""
        return exists(folder / FILE)

    def _opened(self, folder: Path, create: bool) -> Store:
        if create and not self.exists(folder):
            return Store.create_or_open(folder, self._engine, embedder=self._embedder, chunk_tokens=self._chunk_tokens)
        store = Store.open(folder, embedder=self._embedder)
        try:
            store.check_engine(self._engine)
        except BaseException:
            store.close()
            raise
        return store

    def _close_unused(self) -> None:
        for folder, found in list(self._open.items()):
            if not found.n_users and (found.store is None or len(self._open) > self._most):
                del self._open[folder]
                if found.store is not None:
                    found.store.close()
