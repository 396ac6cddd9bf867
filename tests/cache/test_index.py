"""A damaged index does not stop the service, a newer one is not touched, a full disk is borne."""

import errno
import logging
import os
import random
import shutil
import sqlite3
from functools import partial

import pytest
from cache_samples import file_of, same_bits, sample_entry, sample_key
from filelock import FileLock

from hypic_rag.cache import Hit, Miss, SegmentCache
from hypic_rag.cache.tiers.files import entry_path
from hypic_rag.cache.tiers.index_file import move_aside
from hypic_rag.errors import StoreDamaged, StoreMismatch

KEY = sample_key()


@pytest.fixture
def folder(tmp_path):
    """A cache folder with one entry, closed."""
    with SegmentCache.open(tmp_path / "cache") as cache:
        cache.put(KEY, sample_entry())
    return tmp_path / "cache"


def run_sql(path, *statements):
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def only_foreign_tables(path):
    path.unlink()
    run_sql(path, "CREATE TABLE entry (something TEXT)")


def set_value(path, table, column, value):
    """Past what the table demands of its columns, as a flipped bit is."""
    db = sqlite3.connect(path)
    (sql,) = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    for demands in (sql.replace(" NOT NULL", ""), sql):
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (demands, table))
        db.commit()
        db.close()
        db = sqlite3.connect(path)
        if demands != sql:
            db.execute(f"UPDATE {table} SET {column} = {value}")
            db.commit()
    db.close()


WHAT_IT_READS = {
    "entry": ("digest", "nbytes", "checksum", "format_version", "n_tokens", "seam_tokens", "hits", "created",
              "last_used", "pinned", "model", "kind", "namespace", "tokens", "key", "priority"),
    "clock": ("inflation", "most_uses"),
}  # fmt: skip

GARBAGE = {
    "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(20_000)),
    "text": lambda path: path.write_text("not a database, " * 100),
    "cut short": lambda path: os.truncate(path, 5000),
    "garbage after a good start": lambda path: path.write_bytes(path.read_bytes()[:1000] + b"\xa5" * 30_000),
    "a table lost": lambda path: run_sql(path, "DROP TABLE entry"),
    "a number turned into text": lambda path: run_sql(path, "UPDATE entry SET nbytes = x'00'"),
    "another program's database": only_foreign_tables,
    "no clock": lambda path: run_sql(path, "DROP TABLE clock"),
    **{
        f"{value} for a {column} of {table}": partial(set_value, table=table, column=column, value=value)
        for table, columns in WHAT_IT_READS.items()
        for column in columns
        for value in ("NULL", "x'ff'")
    },
}


@pytest.mark.parametrize("damage", GARBAGE.values(), ids=GARBAGE)
def test_a_damaged_index_is_moved_aside_and_a_new_one_started(folder, damage, caplog):
    damage(folder / "index.sqlite")
    with SegmentCache.open(folder) as cache:
        assert cache.lookup(KEY) == Miss("never_seen")
        assert (folder / "index.sqlite.damaged-1").exists()
        assert "is damaged" in caplog.text and "index.sqlite.damaged-1" in caplog.text
        assert [problem.reason for problem in cache.verify()] == ["orphan"]
        assert [problem.reason for problem in cache.gc()] == ["orphan"]
        assert not file_of(folder, KEY).exists()
        cache.put(KEY, sample_entry(1))
        assert cache.verify() == cache.gc() == []
    damage(folder / "index.sqlite")
    with SegmentCache.open(folder) as cache:
        cache.put(KEY, sample_entry(2))  # in the place of the orphan
        assert cache.verify() == []
    assert (folder / "index.sqlite.damaged-2").exists()


def test_a_digest_that_leads_elsewhere_removes_nothing_there(folder):
    digest = f"../{folder.parent.name}/file"
    outside = entry_path(folder, digest)
    outside.write_text("")
    assert outside.resolve().parent == folder.parent
    run_sql(folder / "index.sqlite", f"UPDATE entry SET digest = '{digest}'")
    with SegmentCache.open(folder, disk_budget=file_of(folder, KEY).stat().st_size) as cache:
        cache.put(sample_key(1), sample_entry())  # would evict it
        assert cache.disk.contains(sample_key(1).digest)
    assert outside.exists()
    assert (folder / "index.sqlite.damaged-1").exists()


def test_the_log_of_a_damaged_index_is_not_replayed_into_the_new_one(folder, tmp_path):
    crashed = tmp_path / "crashed"
    with SegmentCache.open(folder) as cache:
        cache.put(sample_key(1), sample_entry(1))
        shutil.copytree(folder, crashed)  # as a crash would leave it, its last rows in the log only
    (crashed / "index.sqlite").write_bytes(b"garbage" * 3000)
    with SegmentCache.open(crashed) as cache:
        assert cache.lookup(sample_key(1)) == Miss("never_seen")
        assert cache.stats().tiers["disk"].n_entries == 0


def test_an_index_is_moved_aside_with_its_log(tmp_path):
    for suffix in ["", "-wal", "-shm", ".damaged-1"]:
        (tmp_path / f"index.sqlite{suffix}").write_text(suffix)
    move_aside(tmp_path / "index.sqlite", OSError("a cause"))
    names = [
        "index.sqlite.damaged-1",
        *(f"index.sqlite.damaged-2{suffix}" for suffix in ["", "-shm", "-wal"]),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_an_index_damaged_while_open_is_replaced(folder):
    with SegmentCache.open(folder) as one, SegmentCache.open(folder) as two:
        pages = (folder / "index.sqlite").stat().st_size
        (folder / "index.sqlite").write_bytes(b"\xa5" * pages)
        (folder / "index.sqlite-wal").unlink(missing_ok=True)
        for seed, cache in enumerate([one, two], start=1):
            assert isinstance(cache.lookup(KEY), Hit | Miss)
            cache.put(KEY, sample_entry(seed))
            assert isinstance(cache.lookup(KEY), Hit)
    with SegmentCache.open(folder) as cache:
        assert isinstance(cache.lookup(KEY), Hit)
        assert cache.verify() == []
    assert not (folder / "index.sqlite.damaged-2").exists()


def test_no_damage_to_the_index_raises_or_gives_a_wrong_answer(folder):
    chance = random.Random(1)
    whole = (folder / "index.sqlite").read_bytes()
    data = file_of(folder, KEY).read_bytes()
    for _ in range(25):
        shutil.rmtree(folder)
        file_of(folder, KEY).parent.mkdir(parents=True)
        file_of(folder, KEY).write_bytes(data)
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 4, 64])):
            # near rows and headers, where it matters; most of a page is empty
            page = 4096 * chance.randrange(len(whole) // 4096)
            damaged[page + chance.choice([chance.randrange(110), 4095 - chance.randrange(300)])] ^= (
                1 << chance.randrange(8)
            )
        (folder / "index.sqlite").write_bytes(damaged)
        try:
            cache = SegmentCache.open(folder)
        except StoreMismatch:  # the flipped bit made the version a newer one
            continue
        with cache:
            answer = cache.lookup(KEY)
            assert isinstance(answer, Miss) or same_bits(answer.entry, sample_entry())
            assert isinstance(cache.put(KEY, sample_entry()).nbytes, int)
            cache.put(sample_key(1), sample_entry(1))
            assert isinstance(cache.lookup(KEY), Hit)
            cache.stats(), cache.verify(), cache.gc()


def test_a_newer_index_is_not_touched(folder):
    run_sql(folder / "index.sqlite", "PRAGMA user_version = 3")
    before = (folder / "index.sqlite").read_bytes()
    with pytest.raises(StoreMismatch, match=r"has format 3, but this hypic-rag knows formats up to 2\. Upgrade"):
        SegmentCache.open(folder)
    assert (folder / "index.sqlite").read_bytes() == before
    assert file_of(folder, KEY).exists()


def test_a_folder_deleted_while_open_is_made_again(folder):
    with SegmentCache.open(folder, host_budget=0) as cache:
        shutil.rmtree(folder)
        assert cache.lookup(KEY) == Miss("never_seen")
        cache.put(KEY, sample_entry())
        assert cache.lookup(KEY).tier == "disk"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreDamaged, match=r"cannot be opened.*Name a folder that can be written"):
        SegmentCache.open(tmp_path / "file" / "cache")


FULL = {  # where the disk fails
    "no space for the file": ("os.fsync", errno.ENOSPC),
    "read-only": ("os.replace", errno.EROFS),
    "failing": ("os.fsync", errno.EIO),
}


@pytest.mark.parametrize("call, code", FULL.values(), ids=FULL)
def test_a_disk_that_takes_nothing_costs_only_the_copy_on_it(folder, monkeypatch, caplog, call, code):
    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    with SegmentCache.open(folder) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(call, fail)
            for n in (1, 2):
                assert same_bits(cache.put(sample_key(n), sample_entry(n)), sample_entry(n))
                assert cache.lookup(sample_key(n)).tier == "host"
            assert cache.lookup(KEY).tier == "disk"
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
        assert os.strerror(code) in caplog.text
        assert not list(folder.glob("*/*.tmp"))
        cache.put(sample_key(1), sample_entry(9))  # the disk works again: the copy in memory is stored
        assert cache.gc() == cache.verify() == []
    with SegmentCache.open(folder) as cache:
        assert same_bits(cache.lookup(sample_key(1)).entry, sample_entry(1))


def test_an_index_locked_by_another_costs_only_the_copy_on_disk(folder, monkeypatch):
    monkeypatch.setattr("hypic_rag.cache.tiers.index_file.BUSY_SECONDS", 0.05)
    other = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    with SegmentCache.open(folder) as cache:
        other.execute("BEGIN IMMEDIATE")
        assert cache.lookup(KEY).tier == "disk"
        assert same_bits(cache.put(sample_key(1), sample_entry(1)), sample_entry(1))
        assert cache.contains(sample_key(1)) == "host"
        other.execute("ROLLBACK")
        cache.put(sample_key(1), sample_entry(2))
        assert cache.disk.contains(sample_key(1).digest)
    other.close()


def test_a_folder_that_stays_locked_is_told(folder, monkeypatch):
    monkeypatch.setattr("hypic_rag.cache.tiers.index_file.BUSY_SECONDS", 0.05)
    with (
        FileLock(folder / "index.lock"),
        pytest.raises(StoreDamaged, match="stayed locked by another process"),
    ):
        SegmentCache.open(folder)
