"""Finished turns, by what a client would send to go on from them, so that the next turn begins with the very ids."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from hypic_rag.engine import Policy
from hypic_rag.prompt import Ids, Prompt
from hypic_rag.rag.order import DEFAULT_ORDER, Order
from hypic_rag.rag.passage import Passage

TURN_BYTES = 64 * 1024**2
TOKEN_BYTES = 36  # a Python integer and its place in a tuple


@dataclass(frozen=True)
class Message:
    """role: system, user, assistant or tool."""

    role: str
    text: str


@dataclass(frozen=True)
class Turn:
    """sources: one a document of the prompt, in its order."""

    prompt: Prompt
    answer_ids: Ids
    sources: tuple[Passage, ...]

    @property
    def nbytes(self) -> int:
        """About; turns of one conversation share most of it."""
        texts = sum(len(source.title) + len(source.text) for source in self.sources)
        return TOKEN_BYTES * (self.prompt.n_tokens + len(self.answer_ids)) + texts


@dataclass(frozen=True)
class Setting:
    """What a conversation is held under: the next turn goes on from a former one only where this is the same.

    documents: those that came with the request. order: of those that are found.
    """

    namespace: str
    policy: Policy
    documents: tuple[Passage, ...] | None = None
    order: Order = DEFAULT_ORDER


class Turns:
    """The turns used last, up to ``budget`` bytes. May be used from several threads."""

    def __init__(self, budget: int = TURN_BYTES):
        self.budget = budget
        self.nbytes = 0
        self._turns: OrderedDict[tuple[str, str], Turn] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, setting: Setting, messages: Sequence[Message], turn: Turn) -> None:
        """Remember a turn for the one that follows. messages: up to and including the answer."""
        key = _key(setting, messages)
        with self._lock:
            self._drop(key)
            self._turns[key] = turn
            self.nbytes += turn.nbytes
            while self.nbytes > self.budget:
                self._drop(next(iter(self._turns)))

    def find(self, setting: Setting, messages: Sequence[Message]) -> Turn | None:
        key = _key(setting, messages)
        with self._lock:
            if key in self._turns:
                self._turns.move_to_end(key)
            return self._turns.get(key)

    def forget(self, namespace: str) -> None:
        """Forget the turns of a collection that has lost a document: its text is in no prompt any more."""
        with self._lock:
            for key in [key for key in self._turns if key[0] == namespace]:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        if turn := self._turns.pop(key, None):
            self.nbytes -= turn.nbytes


def _key(setting: Setting, messages: Sequence[Message]) -> tuple[str, str]:
    documents = setting.documents and [(source.title, source.text) for source in setting.documents]
    told = [repr(setting.policy), setting.order, documents, [(message.role, message.text) for message in messages]]
    return setting.namespace, hashlib.sha256(json.dumps(told).encode()).hexdigest()
