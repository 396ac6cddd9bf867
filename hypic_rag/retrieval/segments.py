"""Chunks to cached segments: what is cold, what it will cost, and prefilling a pack of it."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypic_rag.cache import SegmentCache, SegmentKey
    from hypic_rag.engine import Policy, SegmentEngine
    from hypic_rag.engine.segment_manager import ColdSegment
    from hypic_rag.prompt import Ids

PASSES = 2  # of the engine a pack: one is computed while the one before is stored
FILE_OVERHEAD = 32 * 1024  # bytes that a stored segment takes beyond its tensors, at most
SPARE_DISK = 256 * 2**20  # bytes that are left free for others


def stored_segment(engine: "SegmentEngine", title: str, text: str) -> "tuple[Ids, SegmentKey] | None":
    """Return the ids and the key under which a chunk is cached; None where it is no
    longer than the seam and never is."""
    ids = engine.format.document(text, title)
    policy = caching(engine.policy)
    return (ids, engine.segment_key(ids, policy=policy)) if len(ids) > policy.seam_tokens else None


def caching(policy: "Policy") -> "Policy":
    """Return the policy under which segments are stored, also for an engine that is set to recompute in full."""
    return replace(policy, mode="hypic")


def cold_segments(engine: "SegmentEngine", chunks: Iterable[tuple[str, str]], seen: set[str]) -> "list[ColdSegment]":
    """List the segments of these (title, text) that have to be prefilled, each once: the one place on a document's way
    where it is asked what is cached.

    ``seen``: digests that were looked at before; those of ``chunks`` are added.
    """
    keys = {key.digest: key for _, key in filter(None, (stored_segment(engine, *chunk) for chunk in chunks))}
    unseen = [key for digest, key in keys.items() if digest not in seen]
    seen.update(keys)
    return engine.segments.cold(unseen)


def file_bytes(segment: "ColdSegment") -> int:
    """Return what it will take in the cache, at most."""
    return segment.nbytes + FILE_OVERHEAD


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
    """Prefills packs of cold segments; where there is no more room, leaves the rest cold.

    n_prefilled, n_hits (made before; memory had them), n_tokens (computed), lost (digests of those left cold), is_full.
    """

    def __init__(self, engine: "SegmentEngine", folder: Path):
        self.engine = engine
        self.folder = folder
        self.n_prefilled = self.n_hits = self.n_tokens = 0
        self.lost: set[str] = set()
        self.is_full = False

    def run(self, pack: "Sequence[ColdSegment]") -> None:
        fitting = self._fitting(pack)
        self.lost.update(segment.key.digest for segment in pack[len(fitting) :])
        if fitting:
            made = self.engine.make(fitting)
            # What the cache could not keep (a full or a read-only disk) is as cold as what was not made.
            of_made = min(len(made.lost), made.n_prefilled)
            self.n_prefilled += made.n_prefilled - of_made
            self.n_hits += made.n_hits - (len(made.lost) - of_made)
            self.n_tokens += made.n_tokens
            self.lost |= made.lost

    def leading(self) -> None:
        """Prefill the system text's segment too, so that the first question computes nothing but itself."""
        ids = self.engine.format.leading()
        room = room_bytes(self.engine.cache, self.folder)
        if ids and not self.is_full and self.engine.entry_bytes(len(ids)) + FILE_OVERHEAD <= room:
            self.engine.prefill([ids], kind="leading", policy=caching(self.engine.policy))

    def _fitting(self, pack: "Sequence[ColdSegment]") -> "Sequence[ColdSegment]":
        if self.is_full:
            return []
        room = room_bytes(self.engine.cache, self.folder)
        for i, segment in enumerate(pack):
            room -= file_bytes(segment)
            if room < 0:
                self.is_full = True
                return pack[:i]
        return pack
