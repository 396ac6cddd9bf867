"""Anything odd about a stored entry is a miss with its reason; what is bad goes, and is stored anew."""

import errno
import json
import os
import random
import sqlite3

import pytest
from cache_samples import file_bytes, file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import Miss, SegmentCache
from hypic_rag.cache.tiers.files import checksum_of

KEY, OTHER = sample_key(0), sample_key(1)


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def replace(folder, data):
    """Another content under the key's name, with a row that vouches for it."""
    file_of(folder, KEY).write_bytes(data)
    change_row(folder, f"nbytes = {len(data)}, checksum = {checksum_of(data)}")


def change_row(folder, change):
    db = sqlite3.connect(folder / "index.sqlite")
    db.execute(f"UPDATE entry SET {change} WHERE digest = ?", (KEY.digest,))
    db.commit()
    db.close()


def reworded(old, new):
    """The key's file with some words of its header changed, at equal length."""
    data = file_bytes(sample_entry(), KEY)
    assert data.count(old) == 1 and len(old) == len(new)
    return data.replace(old, new)


def with_header(change):
    """The key's file with its header, as JSON, changed."""
    data = file_bytes(sample_entry(), KEY)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = change(header)
    text = json.dumps(header).encode() if text is None else text
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def first(header):
    return header[min(name for name in header if name != "__metadata__")]


HEADERS = {  # as if somebody had written the file so, with a row that vouches for it
    "tensors that overlap": lambda h: h["1.K"].update(data_offsets=h["1.V"]["data_offsets"]),  # of one size
    "a tensor before the first": lambda h: first(h).update(data_offsets=[-4, 0]),
    "a tensor of the last layer but one": lambda h: h.update({"-1.X": h.pop(min(n for n in h if n[0] != "_"))}),
    "a tensor of layer 999": lambda h: h.update({"999.X": h.pop(min(n for n in h if n[0] != "_"))}),
    "a shape to be guessed": lambda h: first(h).update(shape=[-1]),
    "a shape of words": lambda h: first(h).update(shape=["a"]),
    "a type that is none": lambda h: first(h).update(dtype="F128"),
    "offsets without end": lambda h: first(h).update(data_offsets=[0, 10**400]),
    "nested": lambda h: b"[" * 100_000,
    "a list": lambda h: b"[]",
    "twice the same": lambda h: b'{"a": 1, "a": 1}',
    "no metadata": lambda h: h.pop("__metadata__") and None,
    "metadata that are a list": lambda h: h.update(__metadata__=[]),
    "nested metadata": lambda h: h.update(__metadata__={"hypic": "[" * 100_000}),
    "families that are a number": lambda h: h["__metadata__"].update(
        hypic=json.dumps(json.loads(h["__metadata__"]["hypic"]) | {"families": 5})
    ),
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS)
def test_a_header_that_nobody_writes_is_damage(folder, change):
    replace(folder, with_header(change))
    with SegmentCache.open(folder, host_budget=0) as cache:
        assert [(p.digest, p.reason) for p in cache.verify()] in ([(KEY.digest, "damaged")], [])
        assert cache.lookup(KEY).reason == "damaged"
        assert same_bits(cache.put(KEY, sample_entry(2)), sample_entry(2))
        assert same_bits(cache.lookup(OTHER).entry, sample_entry(1))


DAMAGES = {  # what happens to the folder; the miss's reason; words of its detail
    "a flipped bit in the header": (lambda f: flip(file_of(f, KEY), 100), "damaged", "CRC-32"),
    "a flipped bit at the end": (lambda f: flip(file_of(f, KEY), -1), "damaged", "CRC-32"),
    "cut short": (lambda f: os.truncate(file_of(f, KEY), 100), "truncated", "has 100 bytes"),
    "cut to nothing": (lambda f: os.truncate(file_of(f, KEY), 0), "truncated", "has 0 bytes"),
    "too long": (lambda f: os.truncate(file_of(f, KEY), 10**6), "damaged", "has 1000000 bytes"),
    "file gone": (lambda f: file_of(f, KEY).unlink(), "missing", "is gone"),
    "another entry's file": (lambda f: replace(f, file_bytes(sample_entry(), OTHER)), "wrong_key", KEY.digest[:12]),
    "no entry": (lambda f: replace(f, b"hello"), "damaged", "not a stored entry"),
    "file of another version": (
        lambda f: replace(f, reworded(rb'n\": 1, \"key', rb'n\": 7, \"key')),
        "other_version", "has format 7, asked 1",
    ),
    "file of another length": (
        lambda f: replace(f, reworded(rb"\"n_tokens\": 12, \"seam", rb"\"n_tokens\": 13, \"seam")),
        "wrong_shape", "the file has 13 tokens, asked 12",
    ),
    "file of another seam": (
        lambda f: replace(f, reworded(rb"\"seam_tokens\": 4}", rb"\"seam_tokens\": 5}")),
        "wrong_shape", "seam of 5 tokens, asked 4",
    ),
    "row of another version": (lambda f: change_row(f, "format_version = 9"), "other_version", "format 9"),
    "row of another length": (lambda f: change_row(f, "n_tokens = 11"), "wrong_shape", "has 11 tokens"),
    "row of another seam": (lambda f: change_row(f, "seam_tokens = 0"), "wrong_shape", "seam of 0"),
    "row with another checksum": (lambda f: change_row(f, "checksum = 1"), "damaged", "stored was 1"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A cache folder with two entries, closed."""
    with SegmentCache.open(tmp_path / "cache") as cache:
        cache.put(KEY, sample_entry())
        cache.put(OTHER, sample_entry(1))
    return tmp_path / "cache"


@pytest.mark.parametrize("damage, reason, words", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_a_miss_and_is_mended_by_the_next_put(folder, damage, reason, words):
    damage(folder)
    with SegmentCache.open(folder) as cache:
        assert [(p.digest, p.reason) for p in cache.verify()] == [(KEY.digest, reason)] or "row of" in words
        miss = cache.lookup(KEY)
        assert isinstance(miss, Miss) and miss.reason == reason
        assert words in miss.detail
        assert not file_of(folder, KEY).exists()
        assert cache.contains(KEY) is None
        again = cache.lookup(KEY)
        assert (again.reason, reason in again.detail) == ("damaged", True)
        assert cache.stats().misses == ({reason: 1, "damaged": 1} if reason != "damaged" else {"damaged": 2})

        new = sample_entry(2)
        assert same_bits(cache.put(KEY, new), new)
        assert same_bits(cache.lookup(OTHER).entry, sample_entry(1))
        assert cache.verify() == []
    with SegmentCache.open(folder) as cache:
        assert same_bits(cache.lookup(KEY).entry, new)


@pytest.mark.parametrize("damage, reason, words", DAMAGES.values(), ids=DAMAGES)
def test_put_does_not_return_a_damaged_copy(folder, damage, reason, words):
    damage(folder)
    new = sample_entry(2)
    with SegmentCache.open(folder) as cache:
        assert same_bits(cache.put(KEY, new), new)
    with SegmentCache.open(folder) as cache:
        assert same_bits(cache.lookup(KEY).entry, new)
        assert cache.verify() == []


def test_any_single_flipped_bit_is_found(folder):
    path = file_of(folder, KEY)
    n_bits = 8 * path.stat().st_size
    with SegmentCache.open(folder) as cache:
        for bit in [0, n_bits - 1, *random.Random(0).sample(range(n_bits), 200)]:
            flip(path, bit)
            assert [problem.reason for problem in cache.verify()] == ["damaged"], f"bit {bit}"
            flip(path, bit)
        assert cache.verify() == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ESTALE, errno.ELOOP])
def test_an_entry_that_cannot_be_looked_at_is_not_lost(folder, monkeypatch, number):
    stat = os.stat

    def refuse(path, **options):
        if str(path).endswith(".safetensors"):
            raise OSError(number, os.strerror(number))
        return stat(path, **options)

    with SegmentCache.open(folder) as cache:
        with monkeypatch.context() as patched:
            patched.setattr("hypic_rag.cache.tiers.files.contents_of", refuse)
            assert cache.lookup(KEY).reason == "unreadable"
            patched.setattr(os, "stat", refuse)
            assert cache.disk.gc() == []
        assert cache.lookup(KEY).tier == "disk"


def test_a_caller_may_reject_what_does_not_fit_its_model(folder):
    with SegmentCache.open(folder) as cache:
        cache.lookup(KEY)
        miss = cache.reject(KEY, "wrong_shape", "4 layers, the model has 6")
        assert miss == Miss("wrong_shape", "4 layers, the model has 6")
        assert cache.contains(KEY) is None
        assert cache.stats().misses == {"wrong_shape": 1}
