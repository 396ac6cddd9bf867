"""The entries of segments: looked up in the cache, or prefilled, stored, and used as stored."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from hypic_rag.cache import Entry, Hit, SegmentCache, SegmentKey
from hypic_rag.engine.layout import Layout
from hypic_rag.engine.prefill import packs, prefill
from hypic_rag.engine.report import PrefillReport, SegmentUse
from hypic_rag.prompt import Ids, Part

WRITERS = 4  # entries of a pass that are written at once: most of a write is waiting for the disk


@dataclass
class Fetched:
    """What a prompt's cached parts became. ``n_prefilled``: tokens computed for those that were missing."""

    entries: dict[Part, Entry] = field(default_factory=dict)
    uses: dict[Part, SegmentUse] = field(default_factory=dict)
    n_prefilled: int = 0
    seconds: float = 0.0


class Segments:
    """``template`` is a key with everything but the segment: model, tokenizer, compute type, rotation, namespace."""

    def __init__(self, model: Any, layout: Layout, cache: SegmentCache, template: SegmentKey, deterministic: bool):
        self.model, self.layout, self.cache, self.template = model, layout, cache, template
        self.deterministic = deterministic

    def key(self, part: Part, seam: int, prefix: Ids = ()) -> SegmentKey:
        """prefix: the policy's isolation prefix, which a leading segment does not get."""
        assert part.kind != "live"
        prefix = prefix if part.kind == "document" else ()
        return replace(self.template, token_ids=part.ids, kind=part.kind, seam_tokens=seam, isolation_prefix=prefix)

    def fetch(self, wanted: Iterable[tuple[Part, int]], prefix: Ids = ()) -> Fetched:
        """Entries of (part, seam), each part once. Missing ones are made in packed passes."""
        fetched = Fetched()
        missing: list[tuple[Part, SegmentKey]] = []
        for part, seam in dict(wanted).items():
            key = self.key(part, seam, prefix)
            found = self.cache.lookup(key)
            if isinstance(found, Hit) and (trouble := self.layout.misfit(found.entry)):
                found = self.cache.reject(key, "wrong_shape", trouble)
            if isinstance(found, Hit):
                fetched.entries[part] = found.entry
                fetched.uses[part] = SegmentUse(len(part.ids), found.tier)
            else:
                missing.append((part, key))
                fetched.uses[part] = SegmentUse(len(part.ids), None, found.reason)
        began = time.perf_counter()
        for part, entry in self._make(missing):
            fetched.entries[part] = entry
            fetched.n_prefilled += len(part.ids)
        fetched.seconds = time.perf_counter() - began
        return fetched

    def ensure(
        self,
        wanted: Sequence[tuple[Part, int]],
        prefix: Ids = (),
        on_progress: Callable[[int, int], None] | None = None,
    ) -> PrefillReport:
        """Make what no tier has, without reading what one has; at most one pass of entries is in memory."""
        began = time.perf_counter()
        unique = {part: self.key(part, seam, prefix) for part, seam in wanted}
        missing = [(part, key) for part, key in unique.items() if self.cache.contains(key) is None]
        done = n_hits = len(unique) - len(missing)
        n_bytes = 0
        if on_progress:
            on_progress(done, len(unique))
        for _, entry in self._make(missing):
            n_bytes += entry.nbytes
            done += 1
            if on_progress:
                on_progress(done, len(unique))
        n_tokens = sum(len(part.ids) for part, _ in missing)
        return PrefillReport(len(unique), n_hits, len(missing), n_tokens, n_bytes, time.perf_counter() - began)

    def _make(self, missing: Sequence[tuple[Part, SegmentKey]]) -> Iterable[tuple[Part, Entry]]:
        with ThreadPoolExecutor(WRITERS) as pool:
            for pack in packs([part.ids for part, _ in missing], self.deterministic):
                keys = [missing[i][1] for i in pack]
                ids, seams = [key.token_ids for key in keys], [key.seam_tokens for key in keys]
                made = prefill(self.model, self.layout, ids, seams, [key.isolation_prefix for key in keys])
                for i, stored in zip(pack, pool.map(self.cache.put, keys, made), strict=True):
                    yield missing[i][0], stored
