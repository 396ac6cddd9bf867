"""A folder that an older version made opens, keeps its entries, and is read where it cannot be written."""

import shutil
import sqlite3
import time

import pytest
from cache_samples import same_bits, sample_entry, sample_key

from hypic_rag.cache import Hit, SegmentCache
from hypic_rag.cache.tiers import index_file
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.index_file import FIRST, open_read_only

KEYS = [sample_key(n) for n in range(3)]


def made_by_version_1(folder):
    """As version 1 left it: its tables, and rows without what is new."""
    with SegmentCache.open(folder) as cache:
        for n, key in enumerate(KEYS):
            cache.put(key, sample_entry(n))
        cache.discard([KEYS[2].digest])
    columns = "digest, nbytes, checksum, format_version, n_tokens, seam_tokens, model, kind, namespace, created,"
    db = sqlite3.connect(folder / "index.sqlite")
    rows = db.execute(f"SELECT {columns} last_used, hits FROM entry").fetchall()
    gone = db.execute("SELECT digest, reason, detail FROM gone").fetchall()
    db.close()
    (folder / "index.sqlite").unlink()
    db = sqlite3.connect(folder / "index.sqlite")
    for statement in (*FIRST, "PRAGMA user_version = 1"):
        db.execute(statement)
    db.executemany(f"INSERT INTO entry ({columns} last_used, hits) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", rows)
    db.executemany("INSERT INTO gone (digest, reason, detail) VALUES (?, ?, ?)", gone)
    db.execute("UPDATE entry SET hits = 3 WHERE digest = ?", (KEYS[0].digest,))
    db.commit()
    db.close()


@pytest.fixture
def folder(tmp_path):
    made_by_version_1(tmp_path / "cache")
    return tmp_path / "cache"


def test_its_entries_are_there_and_those_used_more_stay_longer(folder):
    one = 1 + SegmentCache.open(folder).nbytes("disk") // 2
    with SegmentCache.open(folder, host_budget=0, disk_budget=2 * one) as cache:
        assert all(isinstance(cache.lookup(key), Hit) for key in KEYS[:2])
        assert cache.lookup(KEYS[2]).reason == "deleted"
        assert cache.verify() == []
        cache.put(KEYS[2], sample_entry(2))
        assert [cache.contains(key) for key in KEYS] == ["disk", None, "disk"]
    found = EntryFolder(folder).listed()
    assert [(entry.record.tokens, entry.record.key["model"]) for entry in found] == [
        (KEYS[2].tokens_digest, "model-a"),
        ("", "model-a"),  # not known of what the older version stored
    ]


def test_it_is_read_where_it_cannot_be_written(folder):
    db, _ = open_read_only(folder / "index.sqlite", OSError("read-only"))
    assert db.execute("SELECT pinned FROM entry").fetchall() == [(0,), (0,)]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM entry")
    db.close()
    assert sqlite3.connect(folder / "index.sqlite").execute("PRAGMA user_version").fetchone() == (1,)


def test_a_process_of_the_older_version_may_go_on_writing(folder):
    old = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    with SegmentCache.open(folder, host_budget=0) as cache:
        old.execute(
            "INSERT INTO entry (digest, nbytes, checksum, format_version, n_tokens, seam_tokens, model, kind,"
            " namespace, created, last_used, hits) VALUES (?, 1, 1, 1, 1, 0, 'm', 'document', '', 0, 0, 0)",
            ("0" * 64,),
        )
        assert cache.stats().tiers["disk"].n_entries == 3
        assert same_bits(cache.lookup(KEYS[0]).entry, sample_entry(0))
    old.close()


def test_what_could_only_be_read_is_written_once_it_can(folder, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("hypic_rag.cache.tiers.index.open_index", fail)
        cache = SegmentCache.open(folder, host_budget=0)
        assert "Read-only file system" in cache.disk.trouble
        cache.put(KEYS[2], sample_entry(2))
        assert cache.lookup(KEYS[2]).reason == "deleted"
        assert isinstance(cache.lookup(KEYS[0]), Hit)
    cache.disk._index._retry_at = time.monotonic()
    cache.put(KEYS[2], sample_entry(2))
    assert cache.lookup(KEYS[2]).tier == "disk"
    assert cache.disk.trouble == ""
    cache.close()


def test_an_upgrade_cut_short_leaves_the_older_one(folder, monkeypatch):
    broken = (*index_file.SECOND[:6], "no SQL")
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    with monkeypatch.context() as patched:
        patched.setattr(index_file, "SECOND", broken)
        with pytest.raises(sqlite3.OperationalError):
            index_file.connect(copy / "index.sqlite")
    with SegmentCache.open(copy) as cache:
        assert isinstance(cache.lookup(KEYS[0]), Hit)
