"""The entries of segments: looked up in the cache, or prefilled, stored, and used as stored."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from hypic_rag.cache import Entry, Hit, SegmentCache, SegmentKey
from hypic_rag.cache.tiers.device import DevicePool, Resident
from hypic_rag.engine.layout import Layout
from hypic_rag.engine.prefill import packs, prefill
from hypic_rag.engine.report import PrefillReport, SegmentUse
from hypic_rag.prompt import Ids, Part

WRITERS = 4  # entries of a pass that are written at once: most of a write is waiting for the disk


@dataclass
class Fetched:
    """What a prompt's cached parts became. ``n_prefilled``: tokens computed for those that were missing."""

    entries: dict[Part, Entry | Resident] = field(default_factory=dict)
    uses: dict[Part, SegmentUse] = field(default_factory=dict)
    n_prefilled: int = 0
    seconds: float = 0.0


class Segments:
    """``template`` is a key with everything but the segment: model, tokenizer, compute type, rotation, codec,
    namespace."""

    def __init__(
        self,
        model: Any,
        layout: Layout,
        cache: SegmentCache,
        template: SegmentKey,
        deterministic: bool,
        in_chunks: bool = False,
    ):
        self.model, self.layout, self.cache, self.template = model, layout, cache, template
        self.deterministic, self.in_chunks = deterministic, in_chunks
        self.key = lru_cache(maxsize=512)(self._key)  # its digest takes a tenth of a millisecond

    def _key(self, part: Part, seam: int, prefix: Ids = ()) -> SegmentKey:
        """prefix: the policy's isolation prefix, which a leading segment does not get."""
        assert part.kind != "live"
        prefix = prefix if part.kind == "document" else ()
        return replace(self.template, token_ids=part.ids, kind=part.kind, seam_tokens=seam, isolation_prefix=prefix)

    def place(
        self, wanted: Iterable[tuple[Part, int]], prefix: Ids, pool: DevicePool, dead_below: float
    ) -> Fetched | None:
        """As ``fetch``, into the pool, where each is pinned once; None, with nothing pinned, if they do not fit."""
        seams = dict(wanted)
        placed = Fetched()
        absent = []
        for part, seam in seams.items():
            resident = pool.get(self.key(part, seam, prefix).digest)
            if resident is None:
                absent.append((part, seam))
            else:
                pool.pin(resident.digest)
                placed.entries[part] = resident
                placed.uses[part] = SegmentUse(len(part.ids), "device")
        found, missing = self._look_up(absent, prefix)
        placed.uses |= found.uses
        began = time.perf_counter()
        as_made = self.template.codec == "none"  # then it is what is stored, and on the device already
        new = ((part, made if as_made else stored) for part, stored, made in self._make(missing, self.cache.put))
        for part, entry in chain(found.entries.items(), new):
            assert isinstance(entry, Entry)
            resident = pool.put(self.key(part, seams[part], prefix).digest, entry, dead_below)
            if resident is None:
                for one in placed.entries.values():
                    assert isinstance(one, Resident)
                    pool.unpin(one.digest)
                return None
            pool.pin(resident.digest)
            placed.entries[part] = resident
        placed.n_prefilled = sum(len(part.ids) for part, _ in missing)
        placed.seconds = time.perf_counter() - began if missing else 0.0
        return placed

    def fetch(self, wanted: Iterable[tuple[Part, int]], prefix: Ids = ()) -> Fetched:
        """Entries of (part, seam), each part once. Missing ones are made in packed passes."""
        fetched, missing = self._look_up(dict(wanted).items(), prefix)
        began = time.perf_counter()
        for part, entry, _ in self._make(missing, self.cache.put):
            fetched.entries[part] = entry
            fetched.n_prefilled += len(part.ids)
        fetched.seconds = time.perf_counter() - began
        return fetched

    def _look_up(
        self, wanted: Iterable[tuple[Part, int]], prefix: Ids
    ) -> tuple[Fetched, list[tuple[Part, SegmentKey]]]:
        """What the cache has, and what it has not."""
        fetched = Fetched()
        missing: list[tuple[Part, SegmentKey]] = []
        for part, seam in wanted:
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
        return fetched, missing

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
        for _, stored, _ in self._make(missing, self.cache.store):
            n_bytes += stored.nbytes
            done += 1
            if on_progress:
                on_progress(done, len(unique))
        n_tokens = sum(len(part.ids) for part, _ in missing)
        return PrefillReport(len(unique), n_hits, len(missing), n_tokens, n_bytes, time.perf_counter() - began)

    def _make(
        self, missing: Sequence[tuple[Part, SegmentKey]], store: Callable[[SegmentKey, Entry], Entry]
    ) -> Iterable[tuple[Part, Entry, Entry]]:
        """(part, what ``store`` returned of its entry, the entry as made where the model is)."""
        with ThreadPoolExecutor(WRITERS) as pool:
            for pack in packs([part.ids for part, _ in missing], self.deterministic):
                keys = [missing[i][1] for i in pack]
                ids, seams = [key.token_ids for key in keys], [key.seam_tokens for key in keys]
                prefixes = [key.isolation_prefix for key in keys]
                entries = prefill(self.model, self.layout, ids, seams, prefixes, self.in_chunks)
                for i, made, stored in zip(pack, entries, pool.map(store, keys, entries), strict=True):
                    yield missing[i][0], stored, made
