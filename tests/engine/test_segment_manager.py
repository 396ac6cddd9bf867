"""Entries are stored while later ones are made, and what is placed in a pool is what is stored."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from hypic_rag import SegmentCache, SegmentEngine
from hypic_rag.cache import CODECS, Entry, Hit, HostTier, LayerEntry, SegmentKey
from hypic_rag.cache.tiers.arena import Arena
from hypic_rag.cache.tiers.device import DeviceEntry, DevicePool
from hypic_rag.engine import segment_manager as module
from hypic_rag.engine.device.shapes import layer_shapes
from hypic_rag.engine.outputs import PrefillReport
from hypic_rag.prompt import Part, Prompt

LENGTHS = (20, 21, 22, 23, 24)
WANTED = [(Part("document", tiny.ids(n, n)), 8) for n in LENGTHS]


def new_engine(**options: Any) -> SegmentEngine:
    """One segment a pass."""
    return tiny.engine("qwen3_5_text", deterministic=True, **options)


def ensure(engine: SegmentEngine, wanted: Sequence[tuple[Part, int]], **options: Any) -> PrefillReport:
    return engine.segments.make(engine.segments.cold([engine.segments.key(*one) for one in wanted]), **options)


def new_pool(engine: SegmentEngine) -> DevicePool:
    return DevicePool(layer_shapes(engine.cache_spec, torch.float32), "cpu", n_slots=8, n_tokens=512)


class Steps:
    """What happens in which order: "make N" and "store N" begin, "stored N" ends; N counts segments."""

    def __init__(self, engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch, store: Callable[[int], None]):
        """store: called with the number of a segment in place of what takes long, before it is stored."""
        self.seen: list[str] = []
        keys = [engine.segments.key(part, seam) for part, seam in WANTED]
        prefill, original = module.prefill, engine.cache.store

        def make(model: Any, cache_spec: Any, ids: Any, *others: Any) -> list[Entry]:
            self.seen.append(f"make {LENGTHS.index(len(ids[0]))}")
            return prefill(model, cache_spec, ids, *others)

        def stored(key: SegmentKey, entry: Entry) -> Any:
            n = keys.index(key)
            self.seen.append(f"store {n}")
            store(n)
            made = original(key, entry)
            self.seen.append(f"stored {n}")
            return made

        monkeypatch.setattr(module, "prefill", make)
        monkeypatch.setattr(engine.cache, "store", stored)


ASKED: dict[str, Callable[[SegmentEngine], Any]] = {
    "ensure": lambda engine: ensure(engine, WANTED),
    "place": lambda engine: engine.segments.place(WANTED, (), new_pool(engine), 0.0),
    "fetch": lambda engine: engine.segments.fetch(WANTED),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_next_is_made_while_one_is_stored_and_no_more(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    began = [threading.Event() for _ in LENGTHS]

    def store(n: int) -> None:
        if n + 1 < len(LENGTHS):
            assert began[n + 1].wait(30), "the next was not begun before this one was stored"

    steps = Steps(engine, monkeypatch, store)
    make = module.prefill

    def noted(model: Any, cache_spec: Any, ids: Any, *others: Any) -> list[Entry]:
        began[LENGTHS.index(len(ids[0]))].set()
        return make(model, cache_spec, ids, *others)

    monkeypatch.setattr(module, "prefill", noted)
    asked(engine)
    for n in range(2, len(LENGTHS)):
        assert steps.seen.index(f"stored {n - 2}") < steps.seen.index(f"make {n}")
    assert sorted(steps.seen) == sorted(f"{what} {n}" for what in ("make", "store", "stored") for n in range(5))


def test_progress_is_of_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seen = new_engine(), []
    steps = Steps(engine, monkeypatch, lambda n: None)

    def note(done: int, total: int) -> None:
        seen.append((done, total))
        assert sum(step.startswith("stored") for step in steps.seen) >= done

    report = ensure(engine, WANTED, on_progress=note)
    assert seen == [(n, 5) for n in range(6)]
    assert report.n_prefilled == 5 and report.nbytes == engine.cache.nbytes("host")


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_failure_to_store_is_raised_and_others_are_whole(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()

    def store(n: int) -> None:
        if n == 1:
            raise MemoryError("no more")

    steps = Steps(engine, monkeypatch, store)
    with pytest.raises(MemoryError, match="no more"):
        asked(engine)
    assert "make 3" not in steps.seen  # found out before a third is begun
    found = [engine.cache.contains(engine.segments.key(part, seam)) for part, seam in WANTED]
    n_made = sum(step.startswith("make") for step in steps.seen)
    assert found == ["host", None, "host" if n_made == 3 else None, None, None]
    monkeypatch.undo()
    assert ensure(engine, WANTED).n_prefilled == len(WANTED) - (n_made - 1)


def test_what_was_not_stored_leaves_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    pool = new_pool(engine)

    def store(n: int) -> None:
        if n == 1:
            raise MemoryError("no more")

    with monkeypatch.context() as patch:
        Steps(engine, patch, store)
        with pytest.raises(MemoryError):
            engine.segments.place(WANTED, (), pool, 0.0)
    digests = [engine.segments.key(part, seam).digest for part, seam in WANTED]
    assert [digest in pool for digest in digests] == [True, False, True, False, False]
    assert not pool._pins
    pool.clear()
    assert pool.nbytes == 0


def test_what_does_not_fit_is_stored_all_the_same() -> None:
    engine = new_engine()
    pool = DevicePool(layer_shapes(engine.cache_spec, torch.float32), "cpu", n_slots=1, n_tokens=512)
    assert engine.segments.place(WANTED, (), pool, 0.0) is None
    assert not pool._pins
    assert engine.cache.contains(engine.segments.key(*WANTED[0])) == "host"


@pytest.mark.parametrize("codec", CODECS)
def test_where_another_was_first_its_copy_is_placed(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored by somebody else after this one had looked: what is used is what is stored."""
    engine = new_engine(codec=codec)
    pool, [wanted] = new_pool(engine), WANTED[:1]
    key, make = engine.segments.key(*wanted), module.prefill

    def made_by_both(*given: Any) -> list[Entry]:
        entries = make(*given)
        others = [
            LayerEntry(layer.family, {name: t * 2 if t.is_floating_point() else t for name, t in layer.tensors.items()})
            for layer in entries[0].layers
        ]
        engine.cache.put(key, replace(entries[0], layers=tuple(others)))
        return entries

    monkeypatch.setattr(module, "prefill", made_by_both)
    placed = engine.segments.place([wanted], (), pool, 0.0)
    assert placed is not None
    resident, found = placed.entries[wanted[0]], engine.cache.lookup(key)
    assert isinstance(resident, DeviceEntry) and isinstance(found, Hit)
    for stored, views in zip(found.entry.layers, pool.views(resident), strict=True):
        assert all(torch.equal(views[name], t) for name, t in stored.tensors.items())
    pool.unpin(key.digest)
    assert not pool._pins and len(pool) == 1


def test_what_the_pool_serves_is_not_evicted_below(tmp_path: Path) -> None:
    """Found on the device, an entry is in use: a scan takes others out of memory and off the disk."""
    engine = new_engine(cache=SegmentCache.open(tmp_path))
    pool, cache = new_pool(engine), engine.cache
    hot, *others = WANTED
    ensure(engine, WANTED[:3])
    for _ in range(3):
        assert engine.segments.place([hot], (), pool, 0.0) is not None
    assert cache.disk is not None
    cache.host.budget, cache.disk.budget = cache.nbytes("host"), cache.nbytes("disk")
    ensure(engine, others)
    key = engine.segments.key(*hot)
    assert cache.contains(key) == "host" and cache.disk.contains(key.digest)
    assert cache.host.n_evicted and cache.disk.n_evicted


@pytest.mark.parametrize("codec", CODECS)
def test_cold_and_warm_place_the_same_bits_from_an_arena(codec: str) -> None:
    engine = new_engine(cache=SegmentCache(HostTier(None, Arena(page_locked=False))), codec=codec)
    seen = []
    for _ in range(2):
        pool = new_pool(engine)
        placed = engine.segments.place(WANTED, (), pool, 0.0)
        assert placed is not None
        seen.append([pool.views(placed.entries[part]) for part, _ in WANTED])  # type: ignore[arg-type]
    for cold, warm in zip(*seen, strict=True):
        for ours, theirs in zip(cold, warm, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_answers_from_an_arena_are_those_from_other_memory() -> None:
    prompt = Prompt.build(tiny.ids(20, 1), [part.ids for part, _ in WANTED], tiny.ids(13, 2))
    want = new_engine().score(prompt, (5, 6)).logprobs
    engine = new_engine(cache=SegmentCache(HostTier(None, Arena(page_locked=False))))
    cold, warm = (engine.score(prompt, (5, 6)).logprobs for _ in range(2))
    assert torch.equal(cold, warm)
    assert (cold - want).abs().max() < 1e-5
