"""Several processes on one folder, and processes that die: every row's file stays whole."""

import multiprocessing
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
from cache_samples import file_bytes, same_bits, sample_entry, sample_key
from cache_workers import open_and_write, read_without_permission, write_until_killed

from hypic_rag.cache import Hit, SegmentCache

ONE = len(file_bytes(sample_entry(), sample_key()))


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")  # not fork: torch may run threads here
    context.set_forkserver_preload(["pytest", "torch", "safetensors.torch", "hypic_rag.cache"])
    return context


def test_four_processes_may_open_and_write_a_new_folder_at_once(tmp_path, processes):
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        barrier, results = processes.Barrier(4), processes.Queue()
        workers = [processes.Process(target=open_and_write, args=(folder, rank, barrier, results)) for rank in range(4)]
        for worker in workers:
            worker.start()
        assert sorted(results.get(timeout=60) for _ in workers) == [(rank, "done") for rank in range(4)]
        for worker in workers:
            worker.join()
        with SegmentCache.open(folder) as cache:
            assert cache.gc() == cache.verify() == []
            assert cache.stats().tiers["disk"].n_entries == 11
            for n in range(3):  # one of the four copies, whole
                entry = cache.lookup(sample_key(n)).entry
                assert any(same_bits(entry, sample_entry(100 * rank + n)) for rank in range(4))
            for n in [10, 11, 12, 13, 20, 21, 22, 23]:
                assert same_bits(cache.lookup(sample_key(n)).entry, sample_entry(n))


def check_whole(folder, n_keys):
    with SegmentCache.open(folder, host_budget=0) as cache:
        cache.gc()
        assert cache.verify() == []
        assert not list(folder.glob("*/*.tmp"))
        hits = [n for n in range(n_keys) if isinstance(cache.lookup(sample_key(n)), Hit)]
        assert len(hits) == cache.stats().tiers["disk"].n_entries
        for n in hits:
            assert same_bits(cache.lookup(sample_key(n)).entry, sample_entry(n))
        return len(hits)


@pytest.mark.parametrize("budget", [None, 3 * ONE], ids=["unlimited", "evicting"])
def test_a_writer_killed_before_any_change_of_the_disk_leaves_a_whole_store(tmp_path, processes, budget):
    first = 0
    for dies_at in range(12, 21):  # two entries' worth of calls, after some have been written
        worker = processes.Process(target=write_until_killed, args=(tmp_path, budget, first, dies_at))
        worker.start()
        worker.join(30)
        assert worker.exitcode == -signal.SIGKILL
        first += 10
        n_entries = check_whole(tmp_path, first)
        assert n_entries > 0


def test_a_writer_killed_at_any_moment_leaves_a_whole_store(tmp_path, processes):
    chance = random.Random(0)
    for first in range(0, 2500, 500):
        worker = processes.Process(target=write_until_killed, args=(tmp_path, 20 * ONE, first, 0))
        worker.start()
        deadline = time.monotonic() + 30
        while not any(tmp_path.glob("*/*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.05, 0.2))
        worker.kill()
        worker.join()
        check_whole(tmp_path, first + 500)


@pytest.fixture
def open_tmp_path():
    """A folder that every user can reach; pytest's own is only its user's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_folder_is_read(open_tmp_path, processes):
    folder = open_tmp_path / "cache"
    with SegmentCache.open(folder) as cache:
        cache.put(sample_key(), sample_entry())
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    results = processes.Queue()
    worker = processes.Process(target=read_without_permission, args=(folder, results))
    worker.start()
    answer = results.get(timeout=60)
    worker.join()
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    assert answer == {"lookup": True, "put": True, "stored": None, "discarded": 0, "problems": []}
