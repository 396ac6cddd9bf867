"""The remote tier: found by other machines, checked, written behind, and left alone while it fails."""

import json
import logging
import threading
import time
import uuid
from dataclasses import replace

import pytest
from cache_samples import file_bytes, file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import Hit, HostTier, Miss, SegmentCache
from hypic_rag.cache.archive import export, file_name, record_name
from hypic_rag.cache.tiers import circuit_breaker
from hypic_rag.cache.tiers.disk import DiskTier
from hypic_rag.cache.tiers.remote import RemoteTier
from hypic_rag.errors import BadInput

KEY, OTHER = sample_key(0), sample_key(1)


@pytest.fixture(params=["memory", "file"])
def address(request, tmp_path):
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


def machine(folder, address, **options):
    """A cache with a disk of its own."""
    return SegmentCache(HostTier(), DiskTier(folder), RemoteTier(address, **options))


@pytest.fixture
def filled(address, tmp_path):
    """The address, with KEY and OTHER there, put by a first machine."""
    with machine(tmp_path / "first", address) as cache:
        cache.put(KEY, sample_entry(0))
        cache.put(OTHER, sample_entry(1))
        assert cache.flush(10)
        stats = cache.stats().tiers["remote"]
        assert (stats.n_entries, stats.n_dropped, stats.state) == (2, 0, "ok")
    return address


def test_another_machine_finds_it_and_keeps_it_in_the_tiers_above(filled, tmp_path):
    with machine(tmp_path / "second", filled) as cache:
        assert cache.contains(KEY) == "remote" and cache.contains(sample_key(2)) is None
        hit = cache.lookup(KEY)
        assert hit.tier == "remote" and same_bits(hit.entry, sample_entry(0))
        assert cache.lookup(KEY).tier == "host"
        assert cache.disk.contains(KEY.digest) and cache.verify() == []
        assert cache.lookup(sample_key(2)) == Miss("never_seen")
        assert cache.stats().tiers["remote"].hits == 1
    with SegmentCache.open(tmp_path / "second") as cache:
        assert same_bits(cache.lookup(KEY).entry, sample_entry(0))
        assert {entry.record.tokens for entry in cache.disk.listed()} == {KEY.tokens_digest}


def test_a_remote_may_be_all_there_is(filled):
    with SegmentCache.open(None, remote=filled) as cache:
        assert same_bits(cache.lookup(KEY).entry, sample_entry(0))


def test_it_has_the_files_of_the_disk(filled, tmp_path):
    fs = RemoteTier(filled)
    assert fs._fs.cat_file(fs._path(file_name(KEY.digest))) == file_of(tmp_path / "first", KEY).read_bytes()


def test_an_unpacked_archive_is_one(tmp_path):
    import tarfile

    with SegmentCache.open(tmp_path / "from") as cache:
        cache.put(KEY, sample_entry(0))
        export(cache.disk, cache.disk.listed(), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as tar:
        tar.extractall(tmp_path / "remote", filter="data")
    with SegmentCache.open(None, remote=f"file://{tmp_path / 'remote'}") as cache:
        assert cache.lookup(KEY).tier == "remote"


def test_the_first_copy_there_stays(filled, tmp_path):
    tier = RemoteTier(filled)
    tier.put(KEY, sample_entry(9))
    assert tier.flush(10) and tier.n_stored == 0
    assert same_bits(tier.get(KEY)[2], sample_entry(0))


def write(tier, name, data):
    tier._fs.pipe_file(tier._path(name), data)


def reworded(tier, of, **fields):
    record = json.loads(tier._fs.cat_file(tier._path(record_name(of.digest))))
    write(tier, record_name(of.digest), json.dumps(record | fields).encode())


DAMAGES = {
    "cut short": (lambda t: write(t, file_name(KEY.digest), file_bytes(sample_entry(), KEY)[:99]), "truncated"),
    "a flipped bit": (lambda t: write(t, file_name(KEY.digest), file_bytes(sample_entry(5), KEY)), "damaged"),
    "another's": (lambda t: write(t, record_name(KEY.digest), t._fs.cat_file(t._path(record_name(OTHER.digest)))),
                  "wrong_key"),
    "no record": (lambda t: write(t, record_name(KEY.digest), b"hello"), "damaged"),
    "another checksum": (lambda t: reworded(t, KEY, checksum=1), "damaged"),
    "another version": (lambda t: reworded(t, KEY, key=KEY.fields() | {"format_version": 9}), "other_version"),
    "another seam": (lambda t: reworded(t, KEY, key=KEY.fields() | {"seam_tokens": 0}), "wrong_shape"),
    "record alone": (lambda t: t._fs.rm_file(t._path(file_name(KEY.digest))), "never_seen"),
}  # fmt: skip


@pytest.mark.parametrize("damage, reason", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_a_miss_and_goes(filled, tmp_path, damage, reason):
    damage(RemoteTier(filled))
    with machine(tmp_path / "second", filled) as cache:
        assert cache.lookup(KEY).reason == reason
        assert cache.flush(10)
        assert not cache.disk.contains(KEY.digest)
        assert cache.remote.contains(KEY) is (reason == "never_seen")
        assert isinstance(cache.lookup(OTHER), Hit)


def test_deletes_go_there_and_nothing_comes_back_meanwhile(filled, tmp_path):
    with machine(tmp_path / "first", filled) as cache:
        gate = hold(cache.remote, "rm_file")
        cache.discard([KEY.digest])
        assert cache.lookup(KEY).reason == "deleted" and cache.contains(KEY) is None
        gate.set()
        assert cache.flush(10)
        assert cache.lookup(KEY).reason == "deleted"
    with machine(tmp_path / "second", filled) as cache:
        assert cache.lookup(KEY) == Miss("never_seen")
        assert isinstance(cache.lookup(OTHER), Hit)


def test_a_namespace_goes_there_whole_also_what_no_tier_here_knows(address, tmp_path):
    keys = [replace(KEY, namespace="a"), replace(OTHER, namespace="a"), replace(KEY, namespace="b")]
    with machine(tmp_path / "first", address) as cache:
        for key in keys:
            cache.put(key, sample_entry())
        assert cache.flush(10)
    with machine(tmp_path / "second", address) as cache:
        assert cache.discard_namespace("a") == 0
        assert isinstance(cache.lookup(keys[0]), Miss)
        assert cache.flush(10)
        assert [cache.contains(key) for key in keys] == [None, None, "remote"]


def hold(tier, name):
    """The remote's call waits until the event is set."""
    gate, call = threading.Event(), getattr(tier._fs, name)
    tier._fs = Wrapped(tier._fs, name, lambda *a, **k: (gate.wait(20), call(*a, **k))[1])
    return gate


class Wrapped:
    def __init__(self, fs, name, call):
        self._of = fs
        setattr(self, name, call)

    def __getattr__(self, name):
        return getattr(self._of, name)


def test_a_put_waits_for_nothing_and_a_full_queue_drops(address, tmp_path):
    one = sample_entry().nbytes
    with machine(tmp_path / "first", address, queued_bytes=2 * one) as cache:
        gate = hold(cache.remote, "pipe_file")
        cache.put(sample_key(0), sample_entry())
        wait_until(lambda: cache.remote._doing is not None)
        began = time.monotonic()
        for n in range(1, 6):
            cache.put(sample_key(n), sample_entry())
        assert time.monotonic() - began < 2
        assert cache.stats().tiers["remote"].n_dropped == 3
        assert not cache.flush(0.05)
        gate.set()
        assert cache.flush(10)
        assert cache.remote.n_stored == 3


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_a_hanging_remote_costs_one_timeout_and_is_left_alone(filled, tmp_path, monkeypatch, caplog):
    with machine(tmp_path / "second", filled, timeout=0.2) as cache:
        gate = hold(cache.remote, "cat_file")
        began = time.monotonic()
        assert [cache.lookup(sample_key(n)).reason for n in range(5)] == ["never_seen"] * 5
        assert cache.contains(KEY) is None
        assert 0.2 <= time.monotonic() - began < 1
        stats = cache.stats().tiers["remote"]
        assert stats.state == "degraded" and "no answer in 0.2 s" in stats.trouble
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
        gate.set()
        later = time.monotonic() + circuit_breaker.REST_SECONDS
        monkeypatch.setattr("hypic_rag.cache.tiers.circuit_breaker.time.monotonic", lambda: later)
        assert cache.lookup(KEY).tier == "remote"
        assert cache.stats().tiers["remote"].state == "ok"


def test_a_dead_remote_costs_nothing_but_its_copies(filled, tmp_path, caplog, monkeypatch):
    def dead(*arguments, **options):
        raise RuntimeError("connection refused")

    with machine(tmp_path / "second", filled) as cache:
        whole = cache.remote._fs
        cache.remote._fs = Wrapped(Wrapped(Wrapped(whole, "cat_file", dead), "exists", dead), "rm_file", dead)
        assert cache.lookup(KEY).reason == "never_seen"
        assert same_bits(cache.put(KEY, sample_entry(3)), sample_entry(3))
        wait_until(lambda: cache.remote.n_dropped == 1)
        assert "connection refused" in cache.stats().tiers["remote"].trouble
        assert same_bits(cache.lookup(KEY).entry, sample_entry(3))
        cache.discard([OTHER.digest])  # is kept until it can be done
        cache.remote._fs = whole
        later = time.monotonic() + circuit_breaker.REST_SECONDS
        monkeypatch.setattr("hypic_rag.cache.tiers.circuit_breaker.time.monotonic", lambda: later)
        assert cache.flush(10)
        assert isinstance(cache.lookup(OTHER), Miss)
        assert cache.stats().tiers["remote"].state == "ok"


def test_what_cannot_be_an_address_is_told():
    with pytest.raises(BadInput, match=r"cannot be used.*Write it like s3://bucket/folder"):
        RemoteTier("nothing://at/all")
