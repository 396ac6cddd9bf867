"""The host tier: entries in this process's memory, least recently used dropped first."""

from collections import Counter, OrderedDict
from collections.abc import Set

from hypic_rag.cache.entry import Entry
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.arena import Arena

MAX_REMEMBERED = 100_000  # digests no longer here, kept to say why


class HostTier:
    """Entries by digest within ``budget`` bytes (None: unlimited). Not thread-safe: SegmentCache locks.

    What is pinned is never dropped to make room; an entry for which no room can be made is not kept.
    arena: where copies of entries are made that are to be kept here (see ``flat.host_copy``), None: memory of their
    own. Its blocks take a little more than ``budget``.
    """

    def __init__(self, budget: int | None = None, arena: Arena | None = None):
        self.budget = budget
        self.arena = arena
        self.nbytes = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # least recently used first
        self._pins: Counter[str] = Counter()
        self._gone: OrderedDict[str, Miss] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: str) -> bool:
        return digest in self._entries

    @property
    def pinned(self) -> Set[str]:
        return self._pins.keys()

    def get(self, digest: str) -> Entry | None:
        """The entry, which is now the most recently used."""
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def put(self, digest: str, entry: Entry) -> Entry:
        """The entry kept under the digest: the one already here, else the one given, room permitting."""
        kept = self.get(digest)
        if kept is not None:
            return kept
        victims = self._victims(entry.nbytes)
        if victims is None:
            detail = f"its {entry.nbytes} bytes did not fit a host budget of {self.budget} bytes"
            self._remember(digest, Miss("not_stored", detail))
            return entry
        for victim in victims:
            self.discard(victim, Miss("evicted", "from memory, to make room"))
        self._entries[digest] = entry
        self.nbytes += entry.nbytes
        self._gone.pop(digest, None)
        return entry

    def discard(self, digest: str, why: Miss) -> bool:
        """Drop an entry, pinned or not, and remember why. False if it was not here."""
        entry = self._entries.pop(digest, None)
        if entry is None:
            return False
        self.nbytes -= entry.nbytes
        self._remember(digest, why)
        return True

    def why_absent(self, digest: str) -> Miss:
        return self._gone.get(digest, Miss("never_seen"))

    def pin(self, digest: str) -> None:
        """Pins nest; a digest may be pinned before its entry is here."""
        self._pins[digest] += 1

    def unpin(self, digest: str) -> None:
        assert self._pins[digest] > 0, f"unpin without pin: {digest}"
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]

    def clear(self) -> None:
        self._entries.clear()
        self.nbytes = 0

    def _victims(self, nbytes: int) -> list[str] | None:
        """What to drop so that ``nbytes`` fit; None if they cannot, and then nothing need be dropped."""
        if self.budget is None:
            return []
        excess = self.nbytes + nbytes - self.budget
        victims = []
        for digest, entry in self._entries.items():
            if excess <= 0:
                break
            if digest not in self._pins:
                victims.append(digest)
                excess -= entry.nbytes
        return victims if excess <= 0 else None

    def _remember(self, digest: str, why: Miss) -> None:
        self._gone[digest] = why
        self._gone.move_to_end(digest)
        if len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)
