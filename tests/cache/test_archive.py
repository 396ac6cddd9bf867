"""What is exported is imported bit for bit; what is damaged on the way is not, and a good copy is never replaced."""

import io
import json
import subprocess
import sys
import tarfile

import pytest
from cache_samples import file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import Hit, Miss, SegmentCache
from hypic_rag.cache.archive import export, import_
from hypic_rag.cache.record import Record
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.index_queries import EntryFilter
from hypic_rag.errors import BadInput

KEYS = [sample_key(n, namespace="ab"[n % 2]) for n in range(4)]


@pytest.fixture
def archive(tmp_path):
    with SegmentCache.open(tmp_path / "from") as cache:
        for n, key in enumerate(KEYS):
            cache.put(key, sample_entry(n))
        moved = export(cache.disk, cache.disk.listed(), tmp_path / "a.tar")
    assert moved.outcomes == {"stored": 4} and not moved.problems
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.tar"]
    return tmp_path / "a.tar"


def changed(archive, change):
    """Every member by name, through ``change``, which gives the new content, or None to leave it out."""
    out = archive.with_name("changed.tar")
    with tarfile.open(archive) as old, tarfile.open(out, "w") as new:
        for member in old:
            data = change(member.name, old.extractfile(member).read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    return out


def reworded(name, **fields):
    """Changes the record of KEYS[0]."""

    def change(member, data):
        is_it = member.endswith(f"{KEYS[0].digest}.json")
        return json.dumps(json.loads(data) | fields).encode() if is_it else data

    return change


def test_another_folder_serves_them(archive, tmp_path):
    with SegmentCache.open(tmp_path / "to") as cache:
        assert import_(cache.disk, archive).outcomes == {"stored": 4}
        for n, key in enumerate(KEYS):
            assert same_bits(cache.lookup(key).entry, sample_entry(n))
        assert {entry.record.tokens for entry in cache.disk.listed()} == {key.tokens_digest for key in KEYS}
        assert [dict(entry.record.key) for entry in cache.disk.listed(EntryFilter(digest=KEYS[0].digest))] == [
            KEYS[0].fields()
        ]
        assert import_(cache.disk, archive).outcomes == {"exists": 4}
        assert cache.verify() == []


DAMAGES = {  # what becomes of KEYS[0] in the archive, and the reason
    "a flipped bit": (lambda m, d: d[:-1] + bytes([d[-1] ^ 1]) if f"{KEYS[0].digest}.saf" in m else d, "damaged"),
    "cut short": (lambda m, d: d[:-9] if f"{KEYS[0].digest}.saf" in m else d, "truncated"),
    "no record": (lambda m, d: None if f"{KEYS[0].digest}.json" in m else d, "orphan"),
    "a record that is none": (lambda m, d: b"{}" if f"{KEYS[0].digest}.json" in m else d, "damaged"),
    "another checksum": (reworded("", checksum=1), "damaged"),
    "another key": (reworded("", key=KEYS[0].fields() | {"namespace": "other"}), "wrong_key"),
    "another length": (reworded("", key=KEYS[0].fields() | {"n_tokens": 13}), "wrong_shape"),
    "a digest that leads elsewhere": (reworded("", digest="../../etc/passwd"), "damaged"),
}


@pytest.mark.parametrize("change, reason", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_left_out(archive, tmp_path, change, reason):
    with SegmentCache.open(tmp_path / "to") as cache:
        moved = import_(cache.disk, changed(archive, change))
        assert moved.outcomes == {"stored": 3}
        assert moved.problems[0].reason == reason
        assert isinstance(cache.lookup(KEYS[0]), Miss)
        assert all(isinstance(cache.lookup(key), Hit) for key in KEYS[1:])
        assert cache.verify() == []


def test_an_archive_cut_short_gives_what_is_whole(archive, tmp_path):
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with SegmentCache.open(tmp_path / "to") as cache:
        with pytest.raises(BadInput, match="not a whole archive"):
            import_(cache.disk, archive)
        assert 0 < cache.stats().tiers["disk"].n_entries < 4
        assert cache.verify() == []
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadInput, match="cache export"):
        import_(EntryFolder(tmp_path / "to"), tmp_path / "text")


def test_a_good_copy_stays_and_a_damaged_one_is_replaced(archive, tmp_path):
    with SegmentCache.open(tmp_path / "to") as cache:
        cache.put(KEYS[0], sample_entry(9))
        cache.put(KEYS[1], sample_entry(9))
        bad = file_of(tmp_path / "to", KEYS[1])
        bad.write_bytes(bad.read_bytes()[:-1] + b"?")
        assert import_(cache.disk, archive).outcomes == {"stored": 3, "exists": 1}
    with SegmentCache.open(tmp_path / "to") as cache:
        assert same_bits(cache.lookup(KEYS[0]).entry, sample_entry(9))
        assert same_bits(cache.lookup(KEYS[1]).entry, sample_entry(1))


def test_nothing_is_evicted_for_what_comes(archive, tmp_path):
    with SegmentCache.open(tmp_path / "to") as cache:
        cache.put(sample_key(7), sample_entry(7))
        one = cache.nbytes("disk")
    with SegmentCache.open(tmp_path / "to", disk_budget=2 * one + 500) as cache:
        assert import_(cache.disk, archive).outcomes == {"stored": 1, "refused": 3}
        assert isinstance(cache.lookup(sample_key(7)), Hit)


def test_what_is_damaged_is_not_exported(tmp_path):
    with SegmentCache.open(tmp_path / "from") as cache:
        for key in KEYS:
            cache.put(key, sample_entry())
        bad = file_of(tmp_path / "from", KEYS[2])
        bad.write_bytes(bad.read_bytes()[:-1] + b"?")
        moved = export(cache.disk, cache.disk.listed(), tmp_path / "a.tar")
    assert moved.outcomes == {"stored": 3}
    assert [(problem.digest, problem.reason) for problem in moved.problems] == [(KEYS[2].digest, "damaged")]


NO_RECORDS = [None, [], {}, {"digest": 1}, {"digest": "0" * 64, "nbytes": "1", "checksum": 0, "tokens": "", "key": {}}]


@pytest.mark.parametrize("fields", NO_RECORDS)
def test_what_is_no_record_is_refused(fields):
    with pytest.raises(ValueError, match="not a record"):
        Record.from_fields(fields)


def test_folders_and_archives_need_no_torch():
    code = "import sys, hypic_rag.cache.archive, hypic_apps.cli.main, hypic_apps.cache_folders, hypic_apps.cache_why\n"
    code += "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def member(name, kind=tarfile.REGTYPE, size=b"", link="", body=b""):
    """A block of a tar file, and what follows. size: as it stands there, where it is not that of the body."""
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.size = kind, link, len(body)
    block = bytearray(about.tobuf(tarfile.USTAR_FORMAT))
    if size:
        block[124:136] = size.ljust(12, b"\0")
        block[148:156] = b" " * 8
        block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + body + bytes(-len(body) % 512)


END = bytes(1024)
HOSTILE = {  # what stands before the entries; whether those behind it are read, and what is told
    "a link out of the folder": (member("ab/cd.safetensors", tarfile.SYMTYPE, link="../../../etc/passwd"), True),
    "a hard link": (member("ab/cd.json", tarfile.LNKTYPE, link="/etc/passwd"), True),
    "a device": (member("ab/cd", tarfile.CHRTYPE), True),
    "a sparse file": (member("ab/cd.json", tarfile.GNUTYPE_SPARSE), True),
    "a GNU long name": (member("././@LongLink", tarfile.GNUTYPE_LONGNAME, body=b"x" * 600), True),
    "names that lead away": (member("../../../cd.safetensors", body=b"x"), True),
    "an absolute name": (member("/tmp/cd.safetensors", body=b"x"), True),
    "a size below zero": (member("ab/cd", size=b"-0000001000"), False),
    "a size of GNU's below zero": (member("ab/cd.json", size=b"\xff" * 12), False),
    "a size beyond the end": (member("ab/cd.safetensors", size=b"77777777777"), False),
    "a pax header beyond the end": (member("ab/cd", tarfile.XHDTYPE, size=b"77777777777"), False),
    "a size that is no number": (member("ab/cd.json", size=b"0x1"), False),
    "no header": (b"x" * 512, False),
}


@pytest.mark.parametrize("before, goes_on", HOSTILE.values(), ids=HOSTILE)
def test_what_is_made_to_do_harm_does_none(archive, tmp_path, before, goes_on):
    whole = archive.read_bytes()
    archive.write_bytes(before + whole)
    with SegmentCache.open(tmp_path / "to") as cache:
        if goes_on:
            moved = import_(cache.disk, archive)
            assert moved.outcomes == {"stored": 4} and len(moved.problems) == 1
        else:
            with pytest.raises(BadInput, match=r"not a whole archive of segments.*0 entries before"):
                import_(cache.disk, archive)
        assert len(list((tmp_path / "to").rglob("*.safetensors"))) == 4 * goes_on
        assert cache.verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "from", "to"]


def test_wherever_it_is_cut_what_came_before_is_in(archive, tmp_path):
    whole = archive.read_bytes()
    for n, at in enumerate([0, 1, 511, 512, 513, len(whole) // 2, len(whole) - 20_000]):
        archive.write_bytes(whole[:at])
        with SegmentCache.open(tmp_path / f"to{n}") as cache:
            with pytest.raises(BadInput, match="ends too early"):
                import_(cache.disk, archive)
            assert cache.verify() == []


def test_a_folder_that_cannot_be_written_is_not_called_full(archive, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(30, "Read-only file system")

    with SegmentCache.open(tmp_path / "to") as cache:
        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(BadInput, match=r"Read-only file system.*0 entries are in"):
            import_(cache.disk, archive)


@pytest.mark.parametrize("fields", [
    {"n_tokens": 2**70}, {"model": "\ud800"}, {"seam_tokens": -1}, {"kind": None}, {"n_tokens": True},
], ids=str)  # fmt: skip
def test_a_record_that_no_index_can_hold_is_none(fields):
    record = Record.of(KEYS[0], [memoryview(b"x")]).fields()
    with pytest.raises(ValueError):
        Record.from_fields(record | {"key": record["key"] | fields})
