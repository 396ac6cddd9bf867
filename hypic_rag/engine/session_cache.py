"""End states of finished requests, so that the next turn of a conversation resumes exactly where the last ended."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from hypic_rag.engine.policy import Policy
from hypic_rag.engine.state import SequenceState
from hypic_rag.prompt import Part


def merge_live(parts: Sequence[Part], mode: str) -> list[Part]:
    """Join neighbouring live parts; in ``full`` mode every part is live."""
    merged: list[Part] = []
    for part in parts:
        kind = "live" if mode == "full" else part.kind
        if merged and kind == merged[-1].kind == "live":
            merged[-1] = Part("live", merged[-1].ids + part.ids)
        else:
            merged.append(Part(kind, part.ids))
    return merged


def remainder(done: Sequence[Part], parts: Sequence[Part]) -> list[Part] | None:
    """Return what of ``parts`` is left to run after ``done``; None where they do not
    begin with it or nothing is left."""
    if not done or len(done) > len(parts) or list(done[:-1]) != list(parts[: len(done) - 1]):
        return None
    last, here, rest = done[-1], parts[len(done) - 1], list(parts[len(done) :])
    if last == here:
        return rest or None
    if last.kind == here.kind == "live" and here.ids[: len(last.ids)] == last.ids:
        return [Part("live", here.ids[len(last.ids) :]), *rest]
    return None


State = TypeVar("State", bound=SequenceState)


class SessionCache(Generic[State]):
    """Held states by namespace and policy, least recently used first to go. ``budget`` in bytes; 0 holds nothing.

    A plain dict: to compare keys is Python, where Ctrl-C may come, and an OrderedDict does so in mid-change.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self._held: dict[tuple[str, Policy, tuple[Part, ...]], State] = {}  # least recently used first

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in list(self._held.values()))  # at once: other threads ask, too

    def hold(self, namespace: str, policy: Policy, state: State) -> None:
        key = namespace, policy, tuple(state.parts)
        if key in self._held:
            self._held.pop(key).release()
        self._held[key] = state
        while self._held and self.nbytes > self.budget:
            self.drop()

    def drop(self) -> bool:
        """Let go of the state least recently used. False where none is held."""
        if not self._held:
            return False
        self._held.pop(next(iter(self._held))).release()
        return True

    def forget(self, namespace: str) -> None:
        """Let go of all that is held of a namespace."""
        for key in [key for key in self._held if key[0] == namespace]:
            self._held.pop(key).release()

    def clear(self) -> None:
        """Forget all that is held, whose places in a device's pools are void."""
        self._held.clear()

    def find(self, namespace: str, policy: Policy, parts: Sequence[Part]) -> tuple[State, list[Part]] | None:
        """Return the longest held state that ``parts`` begin with (not to be changed), and what is left to run."""
        best: tuple[State, list[Part]] | None = None
        for key, state in self._held.items():
            rest = remainder(state.parts, parts) if key[:2] == (namespace, policy) else None
            if rest is not None and (best is None or state.position > best[0].position):
                best, found = (state, rest), key
        if best is not None:
            self._held[found] = self._held.pop(found)
        return best
