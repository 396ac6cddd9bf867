"""The disk tier: a cache folder that takes and gives entries."""

from collections.abc import Set

from hypic_rag.cache.entry import Entry, pack, unpack
from hypic_rag.cache.key import SegmentKey
from hypic_rag.cache.record import Record
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.folder import EntryFolder, Outcome


class DiskTier(EntryFolder):
    def get(self, key: SegmentKey) -> Entry | Miss:
        """Read the stored entry, fully checked; its tensors view the file's bytes in memory. What proves bad is
        removed, so that the next put stores anew."""
        return self.read(key, lambda data: unpack(data, key))

    def put(self, key: SegmentKey, entry: Entry, keep: Set[str] = frozenset()) -> Outcome:
        """Write an entry that is on the CPU, as ``write`` does."""
        pieces = pack(entry, key)
        return self.write(Record.of(key, pieces), pieces, keep)
