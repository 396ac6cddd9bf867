"""The segment cache: look up a key, store an entry, through memory first, then the disk, then a remote place."""

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from hypic_rag.cache.codec import codec_named
from hypic_rag.cache.entry import Entry, require_same_segment
from hypic_rag.cache.header import EntryRefused
from hypic_rag.cache.key import SegmentKey
from hypic_rag.cache.report import CacheStats, Hit, Miss, Problem, Standing, Stored, Tier, TierStats
from hypic_rag.cache.tiers.arena import Arena
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.disk import DiskTier
from hypic_rag.cache.tiers.host import HostTier
from hypic_rag.cache.tiers.pinned_copy import host_copy, on_device
from hypic_rag.cache.tiers.remote import RemoteTier
from hypic_rag.locks import StateLock


class SegmentCache:
    """Entries by key, in a host tier and, if given, a disk tier and a remote one. Safe for threads; processes share
    the disk, machines the remote.

    Tiers hold, and count the bytes of, what the key's codec makes of an entry; callers see entries decoded.
    Anything odd about a stored entry is a Miss with its reason, never an answer and never an exception.
    Another process's ``discard`` does not reach what this one has in memory.
    """

    def __init__(self, host: HostTier, disk: DiskTier | None = None, remote: RemoteTier | None = None):
        self._lock = StateLock("this SegmentCache")  # of the host tier and the counts; never held while a file is read
        self.host = host
        self.disk = disk
        self.remote = remote
        self._pools: list[tuple[DevicePool, AbstractContextManager[object]]] = []
        self._hits: Counter[Tier] = Counter()
        self._misses: Counter[str] = Counter()

    @classmethod
    def open(
        cls,
        folder: Path | str | None,
        host_budget: int | None = None,
        disk_budget: int | None = None,
        remote: str | None = None,
    ) -> Self:
        """Open the cache of a folder, which is made if needed; without a folder, in memory only.

        Budgets in bytes, None for unlimited. remote: an address (see RemoteTier), below the others.
        Raises StoreMismatch, StoreDamaged (see EntryFolder), BadInput for an address that cannot be one.
        """
        below = None if remote is None else RemoteTier(remote)
        return cls(HostTier(host_budget), None if folder is None else DiskTier(folder, disk_budget), below)

    def lookup(self, key: SegmentKey, device: torch.device | None = None) -> Hit | Miss:
        """Look up the entry of a key, or why there is none. What comes from disk is kept in memory from then on.

        device: where a codec decodes, None for the CPU: the bits are the same. Without a codec it stays in memory.
        Raises BadInput for a key of an unknown codec.
        """
        codec = codec_named(key.codec)
        found = self._find(key)
        if isinstance(found, Miss):
            return self._count(found)
        stored, tier = found
        try:
            entry = codec.decode(on_device(stored, device) if codec.encodings else stored)
        except EntryRefused as bad:
            return self.reject(key, bad.reason, bad.detail)
        with self._lock:
            self._hits[tier] += 1
        return Hit(entry, tier, stored.nbytes)

    def put(self, key: SegmentKey, entry: Entry) -> Entry:
        """Store an entry and return the stored copy, decoded, on the CPU, bit for bit what later lookups give.

        The first stored valid copy wins: if there is one, it is returned and ``entry`` is not stored. An
        entry that fits no budget, or that a full disk refuses, is returned all the same.
        Raises ValueError if the entry is not of the key's token count and seam, BadInput for an unknown codec.
        """
        codec = codec_named(key.codec)
        require_same_segment(entry, key)
        encoded = codec.encode(entry)
        try:
            return codec.decode(self.store(key, encoded).entry)
        except EntryRefused:  # a copy that was there before
            self.discard([key.digest])
            return codec.decode(self.store(key, encoded).entry)

    def store(self, key: SegmentKey, encoded: Entry) -> Stored:
        """Store, as ``put`` does, what the key's codec made of an entry; what is returned
        is as it is stored, unchecked.

        encoded: may be on a GPU, ready on the current stream, which is waited for.
        """
        require_same_segment(encoded, key)  # told even where a copy is stored
        with self._lock:
            kept = self.host.get(key.digest)
        if kept is None:
            stored = self._store(key, encoded)
        else:
            stored = self._write_down(key, kept)
        if self.remote is not None and stored.is_new:
            self.remote.put(key, stored.entry)
        with self._lock:
            kept = self.host.put(key.digest, stored.entry, key.namespace)
            is_kept = key.digest in self.host if self.disk is None else stored.is_kept
        return Stored(kept, stored.is_new and kept is stored.entry, is_kept)

    def write_down(self, key: SegmentKey) -> Stored | None:
        """Store what memory alone has, since the disk did not take it when it was made; None if it has left memory."""
        with self._lock:
            kept = self.host.get(key.digest)
        return None if kept is None else self._write_down(key, kept)

    def standing(self, key: SegmentKey) -> Standing:
        """Say whether the entry is "kept": where it outlives the process, or in memory if that is the lowest tier. Else
        "in memory" or "absent". By indices only: a lookup may still find the file bad."""
        if self.disk is None:
            return "absent" if self.contains(key) is None else "kept"
        if self.disk.contains(key.digest) or (self.remote is not None and self.remote.contains(key)):
            return "kept"
        with self._lock:
            return "in memory" if key.digest in self.host else "absent"

    def touch(self, key: SegmentKey) -> None:
        """Note a use of what was found in a pool, so that the tiers below do not evict what is asked for most."""
        with self._lock:
            self.host.get(key.digest)
        if self.disk is not None:
            self.disk.touch(key.digest)

    def attach(self, pool: DevicePool, lock: AbstractContextManager[object]) -> None:
        """Attach the pool of an engine on a GPU, which looks there first: what is discarded here
        leaves the pool too. lock: its own."""
        self._pools.append((pool, lock))

    def page_lock(self) -> None:
        """Let entries that come to memory from now on lie as an engine on a GPU can copy them without waiting."""
        with self._lock:
            self.host.arena = self.host.arena or Arena(page_locked=True)

    def contains(self, key: SegmentKey) -> Tier | None:
        """Return the tier that has the entry, by its index only: a lookup may still find the file bad."""
        with self._lock:
            if key.digest in self.host:
                return "host"
        if self.disk is not None and self.disk.contains(key.digest):
            return "disk"
        return "remote" if self.remote is not None and self.remote.contains(key) else None

    def discard(self, digests: Iterable[str]) -> int:
        """Remove entries from all tiers, pinned or not; how many were in any but a remote one, where it is queued."""
        n_removed = 0
        for digest in digests:
            on_disk = self.disk is not None and self.disk.discard([digest]) > 0
            with self._lock:
                in_memory = self.host.discard(digest, Miss("deleted"))
            on_device = False
            for pool, lock in self._pools:
                with lock:
                    on_device |= pool.discard(digest)
            if self.remote is not None:
                self.remote.discard(digest)
            n_removed += on_disk or in_memory or on_device
        return n_removed

    def discard_namespace(self, namespace: str) -> int:
        """Remove all entries whose keys have it from all tiers; how many there were, as of ``discard``."""
        with self._lock:
            digests = self.host.of_namespace(namespace)
        if self.disk is not None:
            digests |= self.disk.of_namespace(namespace)
        for pool, lock in self._pools:
            with lock:
                digests |= pool.of_namespace(namespace)
        if self.remote is not None:
            self.remote.discard_namespace(namespace)
        return self.discard(digests)

    def reject(self, key: SegmentKey, reason: str, detail: str) -> Miss:
        """Remove an entry of which the caller finds that it does not fit, say its shapes the
        model's; count the miss and return it."""
        self.discard([key.digest])
        return self._count(Miss(reason, detail))

    def pin(self, key: SegmentKey) -> None:
        """Keep the entry, present or yet to come, from eviction until ``unpin``. Pins nest."""
        with self._lock:
            self.host.pin(key.digest)

    def unpin(self, key: SegmentKey) -> None:
        with self._lock:
            self.host.unpin(key.digest)

    def nbytes(self, tier: Tier) -> int:
        """Count the bytes in use: of tensors in memory, of files on disk. 0 for a tier this cache does not have."""
        if tier == "host":
            with self._lock:
                return self.host.nbytes
        if tier == "remote":
            return 0 if self.remote is None else self.remote.bytes_stored
        return 0 if self.disk is None else self.disk.totals()[1]

    def stats(self) -> CacheStats:
        with self._lock:
            hits, misses = self._hits.copy(), dict(self._misses)
            host = TierStats(len(self.host), self.host.nbytes, self.host.budget, hits["host"], self.host.n_evicted)
        tiers: dict[Tier, TierStats] = {}
        for pool, _ in self._pools:
            tiers["device"] = pool.stats()  # numbers, each whole without the lock, which a pass holds for long
        tiers["host"] = host
        if self.disk is not None:
            totals, disk = self.disk.totals(), self.disk
            tiers["disk"] = TierStats(*totals, disk.budget, hits["disk"], disk.n_evicted, disk.trouble)
        if (remote := self.remote) is not None:
            known = (remote.n_stored, remote.bytes_stored, None, hits["remote"], 0)
            tiers["remote"] = TierStats(*known, remote.trouble, remote.n_dropped)
        return CacheStats(tiers, misses)

    def verify(self) -> list[Problem]:
        """Read and check every file on disk; changes nothing. To be rid of a damaged entry, discard it."""
        return [] if self.disk is None else self.disk.verify()

    def gc(self) -> list[Problem]:
        """Remove files without a row, rows without a file and unfinished files; returns what was removed."""
        return [] if self.disk is None else self.disk.gc()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until what is queued for a remote tier is there, at most so long. Whether it is."""
        with self._lock:
            remote = self.remote
        return remote is None or remote.flush(seconds)

    def close(self) -> None:
        """Close all tiers; in a forked child do nothing, since the files are the parent's."""
        if not self._lock.is_here:
            return
        if self.remote is not None:
            self.remote.close()
        with self._lock:
            self.host.clear()
            self.host.arena = None
        if self.disk is not None:
            self.disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find(self, key: SegmentKey) -> tuple[Entry, Tier] | Miss:
        """Return the entry as stored, and where."""
        with self._lock:
            stored = self.host.get(key.digest)
            absent = self.host.why_absent(key.digest)
        if stored is not None:
            if self.disk is not None:
                self.disk.touch(key.digest)
            return stored, "host"
        if self.disk is not None:
            found = self.disk.get(key)
            if isinstance(found, Entry):
                found = host_copy(found, self.host.arena)
                with self._lock:
                    return self.host.put(key.digest, found, key.namespace), "disk"
            if found.reason != "never_seen":
                absent = found
        return absent if self.remote is None else self._from_remote(key, absent, self.remote)

    def _from_remote(self, key: SegmentKey, absent: Miss, remote: RemoteTier) -> tuple[Entry, Tier] | Miss:
        """Fetch an entry, kept in memory and on disk from then on; else say why none of the tiers above
        has it, or what is wrong there."""
        found = remote.get(key)
        if isinstance(found, Miss):
            return absent if found.reason in ("never_seen", "unreadable") else found
        record, data, entry = found
        if self.disk is not None:
            self.disk.write(record, [data], self._pinned())
        entry = host_copy(entry, self.host.arena)
        with self._lock:
            return self.host.put(key.digest, entry, key.namespace), "remote"

    def _store(self, key: SegmentKey, encoded: Entry) -> Stored:
        """Return a copy in memory, written to the disk; or what the disk has, where it has a valid copy."""
        copy = host_copy(encoded, self.host.arena)
        if self.disk is None:
            return Stored(copy, is_new=True, is_kept=True)
        for _ in range(2):  # a second time if the copy that exists proves bad, which removes it
            outcome = self.disk.put(key, copy, self._pinned())
            if outcome == "stored":
                return Stored(copy, is_new=True, is_kept=True)
            found = self.disk.get(key)  # also where it takes nothing more: somebody's copy may be there
            if isinstance(found, Entry):
                return Stored(host_copy(found, self.host.arena), is_new=False, is_kept=True)
            if outcome == "refused":
                break
        return Stored(copy, is_new=True, is_kept=False)

    def _write_down(self, key: SegmentKey, kept: Entry) -> Stored:
        """Write what memory has to the disk, where that has it not."""
        if self.disk is None:
            return Stored(kept, is_new=False, is_kept=True)
        outcome = self.disk.put(key, kept, self._pinned())
        if outcome == "exists":
            self.disk.touch(key.digest)
        return Stored(kept, is_new=False, is_kept=outcome != "refused" or self.disk.contains(key.digest))

    def _pinned(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self.host.pinned)

    def _count(self, miss: Miss) -> Miss:
        with self._lock:
            self._misses[miss.reason] += 1
        return miss
