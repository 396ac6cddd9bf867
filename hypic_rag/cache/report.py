"""What the cache says back: hits, misses with their reason, problems found, and counts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hypic_rag.cache.entry import Entry

Tier = Literal["device", "host", "disk", "remote"]
Standing = Literal["kept", "in memory", "absent"]


@dataclass(frozen=True, eq=False)
class Hit:
    """A valid entry, decoded, the tier that had it, and the bytes of its tensors there."""

    entry: "Entry"
    tier: Tier
    nbytes: int


@dataclass(frozen=True, eq=False)
class Stored:
    """The copy that the cache has, as it is stored. is_new: it is of the entry given, not one that was there. is_kept:
    see ``SegmentCache.standing``."""

    entry: "Entry"
    is_new: bool
    is_kept: bool


@dataclass(frozen=True)
class Miss:
    """No entry, and why.

    reason: "never_seen"; "evicted", "deleted" (it was here); "not_stored" (no tier had room for it);
    "missing", "truncated", "damaged", "unreadable" (its file is gone or bad);
    "other_version", "wrong_key", "wrong_shape" (the file is whole but is not what was asked).
    detail: a sentence with both values where two things disagree; may be empty.
    """

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Problem:
    """Something found wrong in a store. reason: as of a miss, or "orphan" (a file without a row), "leftover"
    (an unfinished file of a writer that has died), "index". digest: empty where it is about no entry."""

    digest: str
    reason: str
    detail: str


@dataclass(frozen=True)
class TierStats:
    """budget: bytes, None for unlimited. hits, n_evicted (to make room): of this process, since it opened the cache.
    trouble: what did not work when it was last tried, with the cause; empty where all did.
    Of a remote tier, n_entries and nbytes are what this process has put there, since all that is there is not known
    without reading it; n_dropped: entries that should have gone there and did not."""

    n_entries: int
    nbytes: int
    budget: int | None
    hits: int
    n_evicted: int
    trouble: str = ""
    n_dropped: int = 0

    @property
    def state(self) -> Literal["ok", "degraded"]:
        return "degraded" if self.trouble else "ok"


@dataclass(frozen=True)
class CacheStats:
    """tiers: by tier name, only those in use. misses: by reason, since this process opened the cache."""

    tiers: dict[Tier, TierStats]
    misses: dict[str, int]
