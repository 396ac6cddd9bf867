"""The host tier: entries in this process's memory; what is worth least is dropped first."""

from collections import Counter, OrderedDict
from collections.abc import Set

from hypic_rag.cache.entry import Entry
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.arena import Arena
from hypic_rag.cache.tiers.eviction import Ranking

MAX_REMEMBERED = 100_000  # digests no longer here, kept to say why


class HostTier:
    """Entries by digest within ``budget`` bytes (None: unlimited). Not thread-safe: SegmentCache locks.

    What is worth least (``eviction.Ranking``) is dropped to make room, what is pinned never is; an entry for which no
    room can be made is not kept.
    arena: where copies of entries are made that are to be kept here (see ``pinned_copy.host_copy``), None: memory of
    their own. Its blocks take a little more than ``budget``.
    """

    def __init__(self, budget: int | None = None, arena: Arena | None = None):
        self.budget = budget
        self.arena = arena
        self.nbytes = 0
        self.n_evicted = 0
        self._entries: dict[str, Entry] = {}
        self._ranking = Ranking()
        self._namespaces: dict[str, str] = {}  # of entries whose key has one
        self._pins: Counter[str] = Counter()
        self._gone: OrderedDict[str, Miss] = OrderedDict()
        self._is_whole = True  # False where a change was interrupted

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: str) -> bool:
        return digest in self._entries

    @property
    def pinned(self) -> Set[str]:
        return self._pins.keys()

    def get(self, digest: str) -> Entry | None:
        """Return the entry; counts as a use."""
        self._mend()
        entry = self._entries.get(digest)
        if entry is not None:
            self._is_whole = False
            self._ranking.use(digest)
            self._is_whole = True
        return entry

    def put(self, digest: str, entry: Entry, namespace: str = "") -> Entry:
        """Keep an entry under the digest, room permitting; return the one already here, else the one given."""
        kept = self.get(digest)
        if kept is not None:
            return kept
        victims = self._victims(entry.nbytes)
        if victims is None:
            detail = f"its {entry.nbytes} bytes did not fit a host budget of {self.budget} bytes"
            self._remember(digest, Miss("not_stored", detail))
            return entry
        self._is_whole = False
        for victim in victims:
            self._ranking.evict(victim)
            self._drop(victim, Miss("evicted", "from memory, to make room"))
        self.n_evicted += len(victims)
        self._entries[digest] = entry
        self._ranking.add(digest, entry.n_tokens, entry.nbytes)
        if namespace:
            self._namespaces[digest] = namespace
        self.nbytes += entry.nbytes
        self._gone.pop(digest, None)
        self._is_whole = True
        return entry

    def discard(self, digest: str, why: Miss) -> bool:
        """Drop an entry, pinned or not, and remember why. False if it was not here."""
        self._mend()
        if digest not in self._entries:
            return False
        self._is_whole = False
        self._ranking.remove(digest)
        self._drop(digest, why)
        self._is_whole = True
        return True

    def of_namespace(self, namespace: str) -> set[str]:
        """Return the digests of the entries here whose keys have it."""
        if not namespace:
            return self._entries.keys() - self._namespaces.keys()
        return {digest for digest, has in self._namespaces.items() if has == namespace}

    def why_absent(self, digest: str) -> Miss:
        return self._gone.get(digest, Miss("never_seen"))

    def pin(self, digest: str) -> None:
        """Keep an entry from eviction. Pins nest; a digest may be pinned before its entry is here."""
        self._pins[digest] += 1

    def unpin(self, digest: str) -> None:
        assert self._pins[digest] > 0, f"unpin without pin: {digest}"
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]

    def clear(self) -> None:
        self._entries.clear()
        self._ranking.clear()
        self._namespaces.clear()
        self.nbytes = 0

    def _mend(self) -> None:
        """Forget all where Ctrl-C, say, has left a change half done: it comes again from below, or is made again."""
        if not self._is_whole:
            self.clear()
            self._is_whole = True

    def _drop(self, digest: str, why: Miss) -> None:
        entry = self._entries.pop(digest)
        self._namespaces.pop(digest, None)
        self.nbytes -= entry.nbytes
        self._remember(digest, why)

    def _victims(self, nbytes: int) -> list[str] | None:
        """Choose what to drop so that ``nbytes`` fit; None if they cannot, and then nothing need be dropped."""
        if self.budget is None:
            return []
        return self._ranking.victims(self.nbytes + nbytes - self.budget, self._pins.keys())

    def _remember(self, digest: str, why: Miss) -> None:
        self._gone[digest] = why
        self._gone.move_to_end(digest)
        if len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)
