"""The entries of segments: looked up in the cache, or prefilled, stored, and used as stored."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Event
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch

from hypic_rag.cache import Entry, Hit, Miss, SegmentCache, SegmentKey, Stored, codec_named
from hypic_rag.cache.tiers.device import DeviceEntry, DevicePool
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.outputs import PrefillReport, SegmentUse
from hypic_rag.engine.prefill import PrefillPasses, prefill
from hypic_rag.packs import packs
from hypic_rag.prompt import Ids, Part

_NO_LOCK = nullcontext()
WRITERS = 4  # entries that are stored at once: most of a write is waiting for the disk

Kept = TypeVar("Kept")
IsWanted = Callable[[Part], bool]
Missing = Sequence[tuple[Part, SegmentKey]]


@dataclass
class Fetched:
    """What a prompt's cached parts became. ``n_prefilled``: tokens computed for those that were missing."""

    entries: dict[Part, Entry | DeviceEntry] = field(default_factory=dict)
    uses: dict[Part, SegmentUse] = field(default_factory=dict)
    n_prefilled: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Made(Generic[Kept]):
    """An entry where the model is, as made (or encoded), and what storing it gives: running, or done."""

    part: Part
    key: SegmentKey
    entry: Entry
    storing: Future[Kept]


@dataclass(frozen=True)
class ColdSegment:
    """A segment that the cache does not keep. nbytes: of its entry, by forecast. in_memory: it need only be written."""

    key: SegmentKey
    nbytes: int
    in_memory: bool


class GivenUp(Exception):
    """Nobody wants any more what was to be placed."""


def _always(part: Part) -> bool:
    return True


class SegmentManager:
    """``template`` is a key with everything but the segment: model, tokenizer, compute type, rotation, codec,
    namespace."""

    def __init__(
        self,
        model: Any,
        cache_spec: CacheSpec,
        cache: SegmentCache,
        template: SegmentKey,
        deterministic: bool,
        passes: PrefillPasses,
    ):
        """deterministic: one segment a pass."""
        self.model, self.cache_spec, self.cache, self.template = model, cache_spec, cache, template
        self.passes = replace(passes, max_rows=1) if deterministic else passes
        self.key = lru_cache(maxsize=512)(self._key)  # its digest takes a tenth of a millisecond
        self.codec = codec_named(template.codec)
        self._fitting: WeakSet[Entry] = WeakSet()  # seen before: of a large model a look takes 0.2 ms
        self._beside = torch.cuda.Stream(model.device) if model.device.type == "cuda" else None

    @property
    def namespace(self) -> str:
        return self.template.namespace

    def within(self, namespace: str) -> "SegmentManager":
        """Return the same for another namespace."""
        other = copy(self)
        other.template = replace(self.template, namespace=namespace)
        other.key = lru_cache(maxsize=512)(other._key)
        return other

    def _key(self, part: Part, seam: int, prefix: Ids = ()) -> SegmentKey:
        """prefix: the policy's isolation prefix, which a leading segment does not get."""
        assert part.kind != "live"
        prefix = prefix if part.kind == "document" else ()
        return replace(self.template, token_ids=part.ids, kind=part.kind, seam_tokens=seam, isolation_prefix=prefix)

    def place(
        self,
        wanted: Iterable[tuple[Part, int]],
        prefix: Ids,
        pool: DevicePool,
        dead_below: float,
        is_wanted: IsWanted = _always,
    ) -> Fetched | None:
        """Fetch entries into the pool, where each is pinned once; None, with nothing pinned, if they do not fit.

        Missing ones are in the pool as soon as they are made; all are stored when this returns, or leave it again.
        is_wanted: asked before every pass. Raises GivenUp, with nothing pinned, where something was not.
        """
        placed = Fetched()
        keys = {part: self.key(part, seam, prefix) for part, seam in wanted}
        absent = []
        with ExitStack() as undo:

            def use(part: Part, resident: DeviceEntry) -> None:
                pool.pin(resident.digest)
                undo.callback(pool.unpin, resident.digest)
                placed.entries[part] = resident

            for part, key in keys.items():
                resident = pool.get(key.digest)
                if resident is None:
                    absent.append((part, key))
                else:
                    self.cache.touch(key)
                    use(part, resident)
                    placed.uses[part] = SegmentUse(len(part.ids), "device")
            missing = []
            for part, key in absent:
                found = self._look_up(part, key, placed, self.model.device)
                if found is None:
                    missing.append((part, key))
                    continue
                resident = pool.put(key.digest, found, dead_below, key.namespace)
                if resident is None:
                    return None
                use(part, resident)
            began = time.perf_counter()
            made: list[tuple[Part, SegmentKey, Future[Stored]]] = []
            for passed in self._make(missing, self.cache.store, self.codec.encode, is_wanted=is_wanted):
                for one in passed:
                    undo.callback(_drop_unless_stored, pool, one.key.digest, one.storing)
                    resident = pool.put(one.key.digest, self.codec.decode(one.entry), dead_below, one.key.namespace)
                    if resident is None:
                        return None
                    use(one.part, resident)
                    made.append((one.part, one.key, one.storing))
            for part, key, storing in made:
                if storing.result().is_new:
                    continue
                first = self.cache.lookup(key, self.model.device)  # another's copy came before, and is the one to use
                if isinstance(first, Hit):
                    pool.discard(key.digest)
                    resident = pool.put(key.digest, first.entry, dead_below, key.namespace)
                    if resident is None:
                        return None
                    placed.entries[part] = resident  # pins are by digest
            if len(placed.entries) < len(keys):
                raise GivenUp
            undo.pop_all()
        placed.n_prefilled = sum(len(part.ids) for part, _ in missing)
        placed.seconds = time.perf_counter() - began if missing else 0.0
        return placed

    def fetch(self, wanted: Iterable[tuple[Part, int]], prefix: Ids = (), is_wanted: IsWanted = _always) -> Fetched:
        """Fetch the entries of (part, seam), each part once. Missing ones are made in packed passes, but for those that
        ``is_wanted`` says no of before their pass."""
        fetched = Fetched()
        missing = []
        for part, seam in dict(wanted).items():
            key = self.key(part, seam, prefix)
            found = self._look_up(part, key, fetched)
            if found is None:
                missing.append((part, key))
            else:
                fetched.entries[part] = found
        began = time.perf_counter()
        made = self._make(missing, self.cache.put, is_wanted=is_wanted)
        storing = [(one.part, one.storing) for passed in made for one in passed]
        for part, future in storing:
            fetched.entries[part] = future.result()
            fetched.n_prefilled += len(part.ids)
        fetched.seconds = time.perf_counter() - began
        return fetched

    def _look_up(
        self, part: Part, key: SegmentKey, fetched: Fetched, device: torch.device | None = None
    ) -> Entry | None:
        """Return the cache's entry, None if it has none that fits the model. Notes the use in ``fetched``."""
        found: Hit | Miss = self.cache.lookup(key, device)
        if isinstance(found, Hit) and found.entry not in self._fitting:
            if trouble := self.cache_spec.misfit(found.entry):
                found = self.cache.reject(key, "wrong_shape", trouble)
            else:
                self._fitting.add(found.entry)
        if isinstance(found, Miss):
            fetched.uses[part] = SegmentUse(len(part.ids), None, found.reason)
            return None
        fetched.uses[part] = SegmentUse(len(part.ids), found.tier)
        return found.entry

    def cold(self, keys: Iterable[SegmentKey]) -> list[ColdSegment]:
        """List those that the cache does not keep, each once. Nothing that makes or stores them asks again."""
        cold = []
        for key in dict.fromkeys(keys):
            standing = self.cache.standing(key)
            if standing != "kept":
                nbytes = self.cache_spec.entry_bytes(
                    key.n_tokens - key.seam_tokens, self.model.dtype.itemsize, self.codec
                )
                cold.append(ColdSegment(key, nbytes, standing == "in memory"))
        return cold

    def make(
        self,
        cold: Sequence[ColdSegment],
        on_progress: Callable[[int, int], None] | None = None,
        lock: AbstractContextManager[object] = _NO_LOCK,
        stop: Event | None = None,
    ) -> PrefillReport:
        """Make and store all; at most two passes of entries are on the model's device.

        lock: of the model, held for every pass but not while its entries are written. All are stored at the end.
        stop: once it is set no further pass is begun.
        """
        began = time.perf_counter()
        missing, lost = [], []
        for segment in cold:
            written = self.cache.write_down(segment.key) if segment.in_memory else None
            if written is None:
                missing.append((Part(segment.key.kind, segment.key.token_ids), segment.key))
            elif not written.is_kept:
                lost.append(segment.key.digest)
        done = n_hits = len(cold) - len(missing)
        n_tokens = n_bytes = 0
        if on_progress:
            on_progress(done, len(cold))
        for key, stored in self._stored(missing, lock, stop):
            n_tokens += key.n_tokens
            n_bytes += stored.entry.nbytes
            done += 1
            if not stored.is_kept:
                lost.append(key.digest)
            if on_progress:
                on_progress(done, len(cold))
        seconds = time.perf_counter() - began
        return PrefillReport(len(cold), n_hits, done - n_hits, n_tokens, n_bytes, seconds, frozenset(lost))

    def _stored(
        self, missing: Missing, lock: AbstractContextManager[object], stop: Event | None
    ) -> Iterator[tuple[SegmentKey, Stored]]:
        """Yield what became of each in turn, soon after it is stored."""

        def store(key: SegmentKey, entry: Entry) -> Stored:
            return self.cache.store(key, self.codec.encode(entry))

        storing: deque[tuple[SegmentKey, Future[Stored]]] = deque()
        is_wanted = _always if stop is None else lambda part: not stop.is_set()
        for made in self._make(missing, store, lock=lock, is_wanted=is_wanted):
            storing += [(one.key, one.storing) for one in made]
            while storing and storing[0][1].done():
                key, future = storing.popleft()
                yield key, future.result()
        for key, future in storing:
            yield key, future.result()

    def _make(
        self,
        missing: Missing,
        store: Callable[[SegmentKey, Entry], Kept],
        change: Callable[[Entry], Entry] = lambda entry: entry,
        lock: AbstractContextManager[object] = _NO_LOCK,
        is_wanted: IsWanted = _always,
    ) -> Iterator[list[Made[Kept]]]:
        """Pass after pass, as packed; ``store`` runs beside, on what ``change`` gives. At the end all are stored.

        At most two passes of entries are kept on the device by it: one is made while the one before is stored. Raises
        what ``store`` does; those that it was called for are waited for in any case.
        """
        storing: deque[list[Future[Kept]]] = deque()
        with ThreadPoolExecutor(WRITERS) as writers:
            rows = (lambda one: one[1].n_tokens, lambda: self.passes.max_rows)
            nbytes = (lambda one: self._bytes_made(one[1]), lambda: self.passes.max_bytes)
            for pack in packs(missing, rows, nbytes):
                pack = [one for one in pack if is_wanted(one[0])]
                if not pack:
                    continue
                if len(storing) == 2:
                    _wait(storing.popleft())
                keys = [key for _, key in pack]
                ids, seams = [key.token_ids for key in keys], [key.seam_tokens for key in keys]
                prefixes = [key.isolation_prefix for key in keys]
                with lock:
                    made = prefill(self.model, self.cache_spec, ids, seams, prefixes, self.passes)
                    entries = [change(entry) for entry in made]
                ready = None if self._beside is None else torch.cuda.current_stream(self.model.device).record_event()
                passed = [
                    Made(part, key, entry, writers.submit(self._when_ready, ready, store, key, entry))
                    for (part, key), entry in zip(pack, entries, strict=True)
                ]
                storing.append([one.storing for one in passed])
                yield passed
                del made, entries, passed
            while storing:
                _wait(storing.popleft())

    def _bytes_made(self, key: SegmentKey) -> int:
        return self.cache_spec.entry_bytes(key.n_tokens - key.seam_tokens, self.model.dtype.itemsize)

    def _when_ready(
        self,
        ready: torch.cuda.Event | None,
        store: Callable[[SegmentKey, Entry], Kept],
        key: SegmentKey,
        entry: Entry,
    ) -> Kept:
        """Store in a writer's thread: on a stream beside the model's, for which the next pass does not wait."""
        if ready is None or self._beside is None:
            return store(key, entry)
        with torch.cuda.stream(self._beside):
            self._beside.wait_event(ready)
            return store(key, entry)


def _wait(storing: Sequence[Future[Any]]) -> None:
    for future in storing:
        future.result()


def _drop_unless_stored(pool: DevicePool, digest: str, storing: Future[Stored]) -> None:
    if storing.exception() is not None:
        pool.discard(digest)
