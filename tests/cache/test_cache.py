"""Lookups and stores through both tiers: the first copy wins, counts are right, threads may share a cache."""

import threading

import pytest
import torch
from cache_samples import same_bits, sample_entry, sample_key

from hypic_rag.cache import CacheStats, DiskTier, Entry, Hit, Miss, SegmentCache, TierStats

KEY = sample_key()


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path / "a" / "b" if request.param == "disk" else None


def test_what_is_put_is_found(folder):
    with SegmentCache.open(folder) as cache:
        assert cache.lookup(KEY) == Miss("never_seen")
        assert cache.contains(KEY) is None
        assert same_bits(cache.put(KEY, sample_entry()), sample_entry())
        assert cache.contains(KEY) == "host"
        assert same_bits(cache.lookup(KEY).entry, sample_entry())
        assert cache.lookup(sample_key(1)) == Miss("never_seen")


def test_the_first_copy_wins(folder):
    with SegmentCache.open(folder) as cache:
        first = cache.put(KEY, sample_entry(1))
        assert cache.put(KEY, sample_entry(2)) is first
        assert same_bits(cache.lookup(KEY).entry, sample_entry(1))


def test_the_first_copy_on_disk_wins_over_a_later_process(tmp_path):
    with SegmentCache.open(tmp_path) as one, SegmentCache.open(tmp_path) as two:
        one.put(KEY, sample_entry(1))
        assert same_bits(two.put(KEY, sample_entry(2)), sample_entry(1))
    with SegmentCache.open(tmp_path) as three:
        assert same_bits(three.lookup(KEY).entry, sample_entry(1))


def test_a_writer_who_comes_second_changes_nothing(tmp_path):
    disks = [DiskTier(tmp_path), DiskTier(tmp_path)]
    outcomes = [disk.put(KEY, sample_entry(n)) for n, disk in enumerate(disks)]
    assert outcomes == ["stored", "exists"]
    for disk in disks:
        assert same_bits(disk.get(KEY), sample_entry(0))
        disk.close()


def test_what_is_stored_does_not_change_with_what_was_given(folder):
    entry = sample_entry()
    with SegmentCache.open(folder) as cache:
        cache.put(KEY, entry)
        for layer in entry.layers:
            for tensor in layer.tensors.values():
                tensor.fill_(torch.nan)
        assert same_bits(cache.lookup(KEY).entry, sample_entry())


def test_a_wrong_entry_is_told_even_where_a_copy_is_stored(folder):
    with SegmentCache.open(folder) as cache:
        cache.put(KEY, sample_entry())
        with pytest.raises(ValueError, match="build both from the same segment"):
            cache.put(KEY, Entry(3, 0, ()))


def test_a_disk_hit_is_kept_in_memory(tmp_path):
    with SegmentCache.open(tmp_path) as cache:
        cache.put(KEY, sample_entry())
    with SegmentCache.open(tmp_path) as cache:
        assert cache.contains(KEY) == "disk"
        assert [cache.lookup(KEY).tier for _ in range(3)] == ["disk", "host", "host"]
        assert cache.contains(KEY) == "host"
        stats = cache.stats()
        nbytes = sample_entry().nbytes
        assert stats == CacheStats(
            {"host": TierStats(1, nbytes, None, 2, 0), "disk": TierStats(1, cache.nbytes("disk"), None, 1, 0)}, {}
        )
        assert cache.nbytes("host") == nbytes < cache.nbytes("disk") < nbytes + 4096


def test_a_copy_in_memory_is_written_again_where_the_disk_lost_it(tmp_path):
    with SegmentCache.open(tmp_path) as cache:
        cache.put(KEY, sample_entry(1))
        cache.disk.discard([KEY.digest])
        cache.put(KEY, sample_entry(2))
    with SegmentCache.open(tmp_path) as cache:
        assert same_bits(cache.lookup(KEY).entry, sample_entry(1))


def test_discarded_is_gone_from_everywhere(folder):
    with SegmentCache.open(folder) as cache:
        cache.put(KEY, sample_entry())
        cache.pin(KEY)
        assert cache.discard([KEY.digest, sample_key(1).digest]) == 1
        assert cache.lookup(KEY).reason == "deleted"
        assert cache.nbytes("host") == cache.nbytes("disk") == 0
        assert cache.stats().misses == {"deleted": 1}


def test_memory_alone_says_what_it_evicted():
    with SegmentCache.open(None, host_budget=sample_entry().nbytes) as cache:
        cache.put(KEY, sample_entry())
        cache.put(sample_key(1), sample_entry())
        assert cache.lookup(KEY).reason == "evicted"
        assert list(cache.stats().tiers) == ["host"]
        assert cache.verify() == cache.gc() == []


def test_threads_share_a_cache(folder):
    keys = [sample_key(n) for n in range(6)]
    found: list[list[Entry]] = [[] for _ in keys]
    errors: list[BaseException] = []
    budget = 3 * sample_entry().nbytes

    def work(seed):
        try:
            for n, key in enumerate(keys):
                found[n].append(cache.put(key, sample_entry(100 * seed + n)))
            for n, key in enumerate(keys):
                answer = cache.lookup(key)
                if isinstance(answer, Hit):
                    found[n].append(answer.entry)
        except BaseException as error:
            errors.append(error)

    with SegmentCache.open(folder, host_budget=budget if folder else None) as cache:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert cache.nbytes("host") <= budget or folder is None
        assert cache.verify() == []
        for copies in found:
            assert len(copies) == 12
            assert all(same_bits(copy, copies[0]) for copy in copies)


def test_a_namespace_is_discarded_whole(folder):
    from dataclasses import replace

    keys = {name: replace(KEY, namespace=name) for name in ("", "a", "b")}
    with SegmentCache.open(folder) as cache:
        for key in keys.values():
            cache.put(key, sample_entry())
        assert cache.discard_namespace("a") == 1
        assert [cache.contains(key) for key in keys.values()] == ["host", None, "host"]
        assert cache.discard_namespace("a") == 0
        if cache.disk is not None:
            assert set(cache.disk.by_namespace()) == {"", "b"}
            cache.host.clear()  # evicted, say
            assert cache.discard_namespace("") == 1 and cache.contains(keys["b"]) == "disk"
        else:
            assert cache.discard_namespace("") == 1
