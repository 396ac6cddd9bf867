"""Chunks to cached segments: what is cold, what it will cost, and prefilling it in packed calls."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag.cache.report import Hit
from hypic_rag.retrieval.throttle import Throttle

if TYPE_CHECKING:
    from hypic_rag.cache import SegmentCache, SegmentKey
    from hypic_rag.engine import Policy, SegmentEngine
    from hypic_rag.prompt import Ids

PASSES = 2  # of the engine a pack: one is computed while the one before is stored
FILE_OVERHEAD = 32 * 1024  # bytes that a stored segment takes beyond its tensors, at most
SPARE_DISK = 256 * 2**20  # bytes that are left free for others


@dataclass(frozen=True)
class ColdSegment:
    """A segment that the cache does not keep. nbytes: what it will take there, by forecast."""

    ids: "Ids"
    key: "SegmentKey"
    nbytes: int


def stored_segment(engine: "SegmentEngine", title: str, text: str) -> "tuple[Ids, SegmentKey] | None":
    """Return the ids and the key under which a chunk is cached; None where it is no
    longer than the seam and never is."""
    ids = engine.format.document(text, title)
    policy = caching(engine.policy)
    return (ids, engine.segment_key(ids, policy=policy)) if len(ids) > policy.seam_tokens else None


def caching(policy: "Policy") -> "Policy":
    """Return the policy under which segments are stored, also for an engine that is set to recompute in full."""
    return replace(policy, mode="hypic")


def cold_segments(engine: "SegmentEngine", chunks: Iterable[tuple[str, str]], seen: set[str]) -> list[ColdSegment]:
    """List the segments of these (title, text) that have to be prefilled, each once.

    ``seen``: digests that were looked at before; those of ``chunks`` are added.
    """
    cold = []
    for title, text in chunks:
        if stored := stored_segment(engine, title, text):
            ids, key = stored
            if key.digest not in seen and not is_kept(engine.cache, key):
                cold.append(ColdSegment(ids, key, engine.entry_bytes(len(ids)) + FILE_OVERHEAD))
            seen.add(key.digest)
    return cold


def is_kept(cache: "SegmentCache", key: "SegmentKey") -> bool:
    """Return whether an entry is below memory, whose entries end with the process, where there is a tier below."""
    if cache.disk is None:
        return cache.contains(key) is not None
    return cache.disk.contains(key.digest) or (cache.remote is not None and cache.remote.contains(key))


def room_bytes(cache: "SegmentCache", folder: Path) -> int:
    """Count the bytes that can be added to the cache's lowest tier before something is evicted or the disk is full."""
    tiers = cache.stats().tiers
    tier = tiers.get("disk") or tiers["host"]
    within_budget = None if tier.budget is None else tier.budget - tier.nbytes
    if "disk" not in tiers:
        return max(0, within_budget if within_budget is not None else 2**62)
    on_disk = shutil.disk_usage(folder).free - SPARE_DISK
    return max(0, on_disk if within_budget is None else min(on_disk, within_budget))


class PackedPrefill:
    """Prefills segments some thousand tokens a call; where there is no more room, leaves the rest cold.

    n_prefilled, n_hits (were there when their turn came), n_tokens (computed), n_cold (left), is_full.
    """

    def __init__(self, engine: "SegmentEngine", folder: Path, on_tokens: Callable[[int], None], pace: Throttle):
        self.engine = engine
        self.pace = pace
        self.folder = folder
        self.on_tokens = on_tokens
        self.n_prefilled = self.n_hits = self.n_tokens = self.n_cold = 0
        self.is_full = False

    def run(self, segments: Sequence[ColdSegment]) -> None:
        run_packed(segments, self.engine, self.pace, self._pack)

    def leading(self) -> None:
        """Prefill the system text's segment too, so that the first question computes nothing but itself."""
        ids = self.engine.format.leading()
        room = room_bytes(self.engine.cache, self.folder)
        if ids and not self.is_full and self.engine.entry_bytes(len(ids)) + FILE_OVERHEAD <= room:
            self.engine.prefill([ids], kind="leading", policy=caching(self.engine.policy))

    def _pack(self, pack: Sequence[ColdSegment]) -> None:
        fitting = self._fitting(pack)
        if fitting:
            self._write_down(fitting)
            report = self.engine.prefill([segment.ids for segment in fitting], policy=caching(self.engine.policy))
            # What the cache could not keep (a full or a read-only disk) is as cold as what was not made.
            lost = sum(not is_kept(self.engine.cache, segment.key) for segment in fitting)
            of_made = min(lost, report.n_prefilled)
            self.n_prefilled += report.n_prefilled - of_made
            self.n_hits += report.n_hits - (lost - of_made)
            self.n_tokens += report.n_tokens
            self.n_cold += lost
        self.n_cold += len(pack) - len(fitting)
        self.on_tokens(sum(len(segment.ids) for segment in pack))

    def _write_down(self, segments: Sequence[ColdSegment]) -> None:
        """Write down what memory alone has, since the disk was full when it was made: prefilling passes over it."""
        cache = self.engine.cache
        for segment in segments:
            if cache.contains(segment.key) == "host" and isinstance(found := cache.lookup(segment.key), Hit):
                cache.put(segment.key, found.entry)

    def _fitting(self, pack: Sequence[ColdSegment]) -> Sequence[ColdSegment]:
        if self.is_full:
            return []
        room = room_bytes(self.engine.cache, self.folder)
        for i, segment in enumerate(pack):
            room -= segment.nbytes
            if room < 0:
                self.is_full = True
                return pack[:i]
        return pack


def run_packed(
    segments: Sequence[ColdSegment],
    engine: "SegmentEngine",
    pace: Throttle,
    prefill: Callable[[Sequence[ColdSegment]], None],
) -> None:
    """Run ``prefill`` on all in their order, together up to PASSES passes; a longer segment goes alone."""
    pace.run("prefill", segments, lambda segment: len(segment.ids), PASSES * engine.pass_tokens, prefill)
