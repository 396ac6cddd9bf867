"""A disk that fails while a cache serves: every answer is right, the state says so, and the disk is used again."""

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from cache_samples import file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import Hit, SegmentCache
from hypic_rag.cache.tiers import circuit_breaker

KEY, NEW, NEXT = sample_key(0), sample_key(1), sample_key(2)


def failing(code):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


@contextlib.contextmanager
def no_space(folder, patch):
    patch.setattr("os.fsync", failing(errno.ENOSPC))
    yield


@contextlib.contextmanager
def no_space_for_the_row(folder, patch):
    """The file is written, the row is not."""

    def fail(*arguments):
        raise sqlite3.OperationalError("database or disk is full")

    patch.setattr("hypic_rag.cache.tiers.index.insert", fail)
    yield


@contextlib.contextmanager
def read_only(folder, patch):
    patch.setattr("hypic_rag.cache.tiers.files.open", failing(errno.EROFS), raising=False)
    yield


@contextlib.contextmanager
def locked(folder, patch):
    other = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@contextlib.contextmanager
def vanished(folder, patch):
    """And where it was nothing can be made, as under a mount point that is gone."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_text("")
    yield
    folder.unlink()
    away.rename(folder)


TROUBLES = {"no space": no_space, "no space for the row": no_space_for_the_row, "read-only": read_only,
            "locked": locked, "vanished": vanished}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_the_service_goes_on_says_so_once_and_recovers(tmp_path, monkeypatch, caplog, trouble):
    monkeypatch.setattr("hypic_rag.cache.tiers.index_file.BUSY_SECONDS", 0.05)
    folder = tmp_path / "cache"
    with SegmentCache.open(folder) as cache:
        cache.put(KEY, sample_entry())
        assert cache.stats().tiers["disk"].state == "ok"
        with monkeypatch.context() as patch, trouble(folder, patch):
            for key in (NEW, NEXT):
                assert same_bits(cache.put(key, sample_entry(1)), sample_entry(1))
                assert cache.disk.contains(key.digest) is False  # never "stored" before it is
                assert same_bits(cache.lookup(key).entry, sample_entry(1))
            assert same_bits(cache.lookup(KEY).entry, sample_entry())
            assert cache.stats().tiers["disk"].state == "degraded"
            assert str(folder) in cache.stats().tiers["disk"].trouble
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == len(set(warnings)) and sum("written" in text for text in warnings) == 1
        assert not list(folder.glob("*/*.tmp"))
        assert list(folder.glob("*/*.safetensors")) == [file_of(folder, KEY)]
        cache.put(NEW, sample_entry(9))
        cache.put(sample_key(3), sample_entry(3))
        assert cache.stats().tiers["disk"].state == "ok"
        assert cache.verify() == cache.gc() == []
    with SegmentCache.open(folder) as cache:
        for key, seed in ((KEY, 0), (NEW, 1), (sample_key(3), 3)):
            assert same_bits(cache.lookup(key).entry, sample_entry(seed))


def test_a_second_spell_of_trouble_is_told_too(tmp_path, monkeypatch, caplog):
    with SegmentCache.open(tmp_path / "cache") as cache:
        for n in range(2):
            with monkeypatch.context() as patch, no_space(tmp_path, patch):
                cache.put(sample_key(2 * n), sample_entry())
            cache.put(sample_key(2 * n + 1), sample_entry())
    assert sum(record.levelno >= logging.WARNING for record in caplog.records) == 2


def test_where_failing_is_slow_it_is_left_alone_for_a_while(tmp_path, monkeypatch):
    calls = []

    def slow(*arguments):
        calls.append(1)
        raise OSError(errno.EIO, "slow")

    with SegmentCache.open(tmp_path / "cache") as cache:
        cache.put(KEY, sample_entry())
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", slow)
            cache.disk._health._rest_after = 0.0  # as if it had taken longer
            for n in range(1, 5):
                cache.put(sample_key(n), sample_entry(n))
        assert len(calls) == 1
        assert isinstance(cache.lookup(KEY), Hit)
        patch_rest(monkeypatch, cache)
        cache.put(sample_key(1), sample_entry(1))
        assert cache.disk.contains(sample_key(1).digest) and cache.disk.trouble == ""


def patch_rest(monkeypatch, cache):
    """The rest is over."""
    later = circuit_breaker.time.monotonic() + circuit_breaker.REST_SECONDS
    monkeypatch.setattr("hypic_rag.cache.tiers.circuit_breaker.time.monotonic", lambda: later)


def test_files_that_vanish_one_by_one_are_misses(tmp_path):
    folder = tmp_path / "cache"
    with SegmentCache.open(folder, host_budget=0) as cache:
        cache.put(KEY, sample_entry())
        shutil.rmtree(file_of(folder, KEY).parent)
        assert cache.lookup(KEY).reason == "missing"
        cache.put(KEY, sample_entry())
        assert cache.lookup(KEY).tier == "disk"
        assert cache.disk.trouble == ""
    assert isinstance(file_of(folder, KEY), Path)
