"""The disk tier stays within its budget, evicts what was used longest ago, and says so later."""

import logging

import pytest
from cache_samples import file_bytes, file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import SegmentCache

KEYS = {name: sample_key(n) for n, name in enumerate("abcd")}
ONE = len(file_bytes(sample_entry(), KEYS["a"]))

CASES = {  # budget in entries, what is done, what is left on disk, what a lookup says of the others
    "unlimited": (None, "put a, put b, put c, put d", "abcd", {}),
    "exactly full": (2, "put a, put b", "ab", {"c": "never_seen"}),
    "the oldest goes": (2, "put a, put b, put c", "bc", {"a": "evicted"}),
    "what was read stays": (2, "put a, put b, lookup a, put c", "ac", {"b": "evicted"}),
    "what was put again stays": (2, "put a, put b, put a, put c", "ac", {"b": "evicted"}),
    "what is pinned stays": (2, "put a, put b, pin a, put c", "ac", {"b": "evicted"}),
    "no room beside the pinned": (2, "put a, put b, pin a, pin b, put c", "ab", {"c": "not_stored"}),
    "too large alone": (0.9, "put a", "", {"a": "not_stored"}),
    "deleted": (2, "put a, put b, discard a", "b", {"a": "deleted"}),
    "deleted makes room": (2, "put a, put b, discard a, put c", "bc", {"a": "deleted"}),
    "back after eviction": (2, "put a, put b, put c, put a", "ac", {"b": "evicted"}),
}


def do(cache, steps):
    for step in steps.split(", "):
        verb, name = step.split()
        if verb == "put":
            cache.put(KEYS[name], sample_entry())
        elif verb == "discard":
            cache.discard([KEYS[name].digest])
        else:
            getattr(cache, verb)(KEYS[name])


@pytest.mark.parametrize("host_budget", [0, None], ids=["from disk", "from memory"])
@pytest.mark.parametrize("budget, steps, left, reasons", CASES.values(), ids=CASES)
def test_what_is_left(tmp_path, budget, steps, left, reasons, host_budget):
    disk_budget = None if budget is None else int(budget * ONE)
    with SegmentCache.open(tmp_path, host_budget, disk_budget) as cache:
        do(cache, steps)
        assert [name for name, key in KEYS.items() if cache.disk.contains(key.digest)] == list(left)
        assert [name for name, key in KEYS.items() if file_of(tmp_path, key).exists()] == list(left)
        assert cache.nbytes("disk") == len(left) * ONE
        assert cache.verify() == []
        if host_budget == 0:
            assert {name: cache.lookup(KEYS[name]).reason for name in reasons} == reasons


def test_reasons_outlive_the_process(tmp_path):
    with SegmentCache.open(tmp_path, disk_budget=ONE) as cache:
        do(cache, "put a, put b, discard b")
    with SegmentCache.open(tmp_path) as cache:
        assert [cache.lookup(KEYS[name]).reason for name in "abc"] == ["evicted", "deleted", "never_seen"]


def test_uses_outlive_the_process(tmp_path):
    with SegmentCache.open(tmp_path) as cache:
        do(cache, "put a, put b, lookup a")
    with SegmentCache.open(tmp_path, disk_budget=2 * ONE) as cache:
        do(cache, "put c")
        assert cache.contains(KEYS["a"]) and not cache.contains(KEYS["b"])


def test_a_budget_lowered_later_is_reached_by_the_next_put(tmp_path):
    with SegmentCache.open(tmp_path) as cache:
        do(cache, "put a, put b, put c")
    with SegmentCache.open(tmp_path, disk_budget=ONE) as cache:
        do(cache, "put d")
        assert [name for name in "abcd" if cache.contains(KEYS[name])] == ["d"]


def test_an_entry_too_large_is_still_returned_and_warned_of_once(tmp_path, caplog):
    with SegmentCache.open(tmp_path, host_budget=0, disk_budget=ONE - 1) as cache:
        assert same_bits(cache.put(KEYS["a"], sample_entry()), sample_entry())
        cache.put(KEYS["b"], sample_entry())
        assert cache.lookup(KEYS["a"]).reason == "not_stored"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert f"{ONE} bytes was not stored" in warnings[0].getMessage()


def test_only_so_many_digests_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr("hypic_rag.cache.tiers.index.MAX_REMEMBERED", 2)
    with SegmentCache.open(tmp_path, host_budget=0) as cache:
        do(cache, "put a, put b, put c, discard a, discard b, discard c")
    with SegmentCache.open(tmp_path) as cache:
        assert [cache.lookup(KEYS[name]).reason for name in "abc"] == ["never_seen", "deleted", "deleted"]
