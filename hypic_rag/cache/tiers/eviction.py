"""What an entry is worth keeping: what it would cost to make again, how often it is used, in how many bytes.

GreedyDual-Size-Frequency: priority = L + uses * cost / bytes. What has the lowest goes first, and L becomes its
priority; so what is not used any more is overtaken by what comes, however often it was used before.
cost: the tokens of a segment, as a prefill takes time in proportion to them (what attention adds with their square is
little for a segment). A segment's bytes hardly grow with its tokens where states are large, so long ones stay longer.
How many uses count at most is learnt, from 1 (least recently used, but for cost and bytes) to MOST_USES: more where one
that had been used again is asked for soon after it was evicted, fewer where one that had not had the time comes back.
Sources: L. Cherkasova, Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy, HP Labs
technical report HPL-98-69R1, 1998; the cost as in P. Cao, S. Irani, Cost-Aware WWW Proxy Caching Algorithms, 1997;
learning from what was just evicted as in N. Megiddo, D. Modha, ARC, FAST 2003.
"""

import heapq
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from itertools import count

MOST_USES = 8
"""More withstand scans better: with 3, one of three times what fits evicts all. tests/cache/test_eviction.py has what
is saved, beside the least recently used."""


def priority(inflation: float, uses: int, n_tokens: int, nbytes: int, most_uses: float = MOST_USES) -> float:
    """Compute an entry's priority. inflation: L. uses: the first, which stored it, included."""
    return inflation + min(uses, most_uses) * n_tokens / max(nbytes, 1)


def learnt(most_uses: float, uses: int) -> float:
    """Return how many uses count from now on, when one comes back that had so many before it was evicted, not long ago:
    since then no more were evicted than there are entries."""
    return min(MOST_USES, most_uses + 1) if uses > 1 else max(1, most_uses - 1)


@dataclass(slots=True)
class _Ranked:
    """ticket: of its newest place in the heap; others are void."""

    n_tokens: int
    nbytes: int
    uses: int = 0
    priority: float = 0.0
    ticket: int = -1


class Ranking:
    """Digests by priority, in memory; of equal ones, that used longest ago first. Not thread-safe."""

    def __init__(self) -> None:
        self._inflation = 0.0
        self._most_uses: float = MOST_USES
        self._evicted: OrderedDict[str, tuple[int, int]] = OrderedDict()  # its uses, the how manyth it was
        self._n_evicted = 0
        self._ranked: dict[str, _Ranked] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._tickets = count()

    def add(self, digest: str, n_tokens: int, nbytes: int) -> None:
        self._forget_evicted()
        if before := self._evicted.pop(digest, None):
            self._most_uses = learnt(self._most_uses, before[0])
        self._ranked[digest] = _Ranked(n_tokens, nbytes)
        self.use(digest)

    def use(self, digest: str) -> None:
        one = self._ranked[digest]
        one.uses += 1
        one.ticket = next(self._tickets)
        one.priority = priority(self._inflation, one.uses, one.n_tokens, one.nbytes, self._most_uses)
        heapq.heappush(self._heap, (one.priority, one.ticket, digest))
        if len(self._heap) > 2 * len(self._ranked) + 64:
            self._heap = [place for place in self._heap if self._is_valid(place)]
            heapq.heapify(self._heap)

    def remove(self, digest: str) -> None:
        self._ranked.pop(digest, None)

    def victims(self, excess: int, spared: Set[str]) -> list[str] | None:
        """Choose what to evict so that ``excess`` bytes come free; None where that is not enough. Changes nothing."""
        passed: list[tuple[float, int, str]] = []
        found: list[str] = []
        while excess > 0 and self._heap:
            place = heapq.heappop(self._heap)
            if not self._is_valid(place):
                continue
            passed.append(place)
            if place[2] not in spared:
                found.append(place[2])
                excess -= self._ranked[place[2]].nbytes
        for place in passed:
            heapq.heappush(self._heap, place)
        return found if excess <= 0 else None

    def evict(self, digest: str) -> None:
        """Remove an entry to make room: L becomes its priority."""
        one = self._ranked.pop(digest)
        self._inflation = max(self._inflation, one.priority)
        self._n_evicted += 1
        self._evicted[digest] = one.uses, self._n_evicted
        self._forget_evicted()

    def clear(self) -> None:
        self._evicted.clear()
        self._ranked.clear()
        self._heap.clear()

    def _forget_evicted(self) -> None:
        """Forget those since which more were evicted than there are entries."""
        while self._evicted and self._n_evicted - next(iter(self._evicted.values()))[1] > len(self._ranked):
            self._evicted.popitem(last=False)

    def _is_valid(self, place: tuple[float, int, str]) -> bool:
        one = self._ranked.get(place[2])
        return one is not None and one.ticket == place[1]
