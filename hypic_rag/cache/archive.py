"""Entries of a cache folder as a tar file, and back, so that what one machine has prefilled serves on another.

An archive has ab/DIGEST.json (a record) and then ab/DIGEST.safetensors for every entry. Imports no torch.
"""

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from hypic_rag.atomic_write import replacing
from hypic_rag.cache.header import EntryRefused, header_of
from hypic_rag.cache.record import Record, checksum_of
from hypic_rag.cache.report import Miss, Problem
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.index_queries import EntryFilter, EntryInfo
from hypic_rag.errors import BadInput
from hypic_rag.sqlite_file import what_to_do
from hypic_rag.stored_json import parse

MOST_OF_A_RECORD = 1 << 20  # bytes


@dataclass
class Moved:
    """outcomes: how many entries were "stored", "exists" or "refused" (no room); of an export only the first.
    nbytes: of those stored. problems: entries that were left out, and why."""

    outcomes: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    problems: list[Problem] = field(default_factory=list)


def record_name(digest: str) -> str:
    return f"{digest[:2]}/{digest}.json"


def file_name(digest: str) -> str:
    return f"{digest[:2]}/{digest}.safetensors"


def check(data: memoryview | bytes, record: Record) -> Record:
    """Check a file that came from elsewhere; return its record with the whole key. Raises
    EntryRefused if it is not that file."""
    if len(data) != record.nbytes:
        raise EntryRefused("truncated", f"it has {len(data)} bytes, its record says {record.nbytes}")
    checksum = checksum_of(data)
    if checksum != record.checksum:
        raise EntryRefused("damaged", f"it has CRC-32 {checksum}, its record says {record.checksum}")
    key = header_of(data, record).key
    for name, value in record.key.items():
        if key.get(name) != value:
            raise EntryRefused("wrong_key", f"its {name} is {key.get(name)!r}, its record says {value!r}")
    return replace(record, key=key)


def export(folder: EntryFolder, entries: Iterable[EntryInfo], path: Path) -> Moved:
    """Write entries into ``path``, which is replaced once all is written. What is
    damaged is left out. Raises OSError."""
    moved = Moved()
    with replacing(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            digest = entry.record.digest
            try:
                data = folder.contents(entry.row)
                record = check(data, entry.record)
            except EntryRefused as bad:
                moved.problems.append(Problem(digest, bad.reason, bad.detail))
                continue
            _add(tar, record_name(digest), json.dumps(record.fields()).encode())
            _add(tar, file_name(digest), data)
            moved.outcomes["stored"] += 1
            moved.nbytes += record.nbytes
    return moved


def import_(folder: EntryFolder, path: Path) -> Moved:
    """Take entries in from ``path``. A valid copy that is there stays, nothing is evicted,
    and what is damaged is left out.

    Raises BadInput where it is no tar file, or ends too early, or the folder cannot be written; what came before is in
    all the same. Raises OSError.
    """
    moved = Moved()
    record: Record | None = None
    try:
        with path.open("rb") as file:
            for name, size in _files(file, moved):
                digest = Path(name).stem
                if name.endswith(".json") and size <= MOST_OF_A_RECORD:
                    record = _record(file.read(size), digest, moved)
                elif name.endswith(".safetensors") and record is not None and record.digest == digest:
                    _take_in(folder, record, file.read(size), moved)
                    record = None
                elif name.endswith(".safetensors"):
                    moved.problems.append(Problem(digest, "orphan", "it has no record in the archive"))
    except BadInput:
        raise
    except (ValueError, EOFError) as error:
        raise BadInput(
            f"{path} is not a whole archive of segments: {error}. Make one with hypic-rag cache export FILE.tar; "
            f"{moved.outcomes['stored']} entries before that are in"
        ) from error
    return moved


def _files(file: BinaryIO, moved: Moved) -> Iterator[tuple[str, int]]:
    """Name and size of each file in a tar file, which stands at its content. Raises ValueError, EOFError.

    tarfile reads whatever a tar file may hold, and of one that is damaged, or made to do harm, may never come to an end
    or want all memory. Names of segments are short and their sizes below 8 GiB, so that each is in one block; blocks
    that only say more of the next one (xattrs, say) are passed over, and what is no file is told.
    """
    end, at = os.fstat(file.fileno()).st_size, 0
    while True:
        file.seek(at)
        block = file.read(tarfile.BLOCKSIZE)
        if len(block) == tarfile.BLOCKSIZE and not any(block):
            return
        if len(block) < tarfile.BLOCKSIZE:
            raise EOFError("it ends too early")
        if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise ValueError(f"at byte {at} no file begins")
        name, size, kind = block[:100].rstrip(b"\0").decode("ascii", "replace"), _octal(block[124:136]), block[156:157]
        at += tarfile.BLOCKSIZE + size + -size % tarfile.BLOCKSIZE
        if at > end:
            raise EOFError("it ends too early")
        if kind in (tarfile.REGTYPE, tarfile.AREGTYPE):
            yield name, size
        elif kind not in (tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE):
            moved.problems.append(Problem(Path(name).stem, "damaged", f"{name!r} is no file (tar type {kind!r})"))


def _octal(field: bytes) -> int:
    digits = field.strip(b"\0 ")
    if not digits.isdigit():
        raise ValueError(f"{field!r} is no number")
    return int(digits, 8)


def _add(tar: tarfile.TarFile, name: str, data: bytes | memoryview) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    tar.addfile(about, io.BytesIO(data))


def _record(text: bytes, digest: str, moved: Moved) -> Record | None:
    try:
        record = Record.from_fields(parse(text))
        if record.digest != digest:
            raise ValueError(f"it is of {record.digest[:12]}")
        return record
    except ValueError as error:
        moved.problems.append(Problem(digest, "damaged", str(error)))
        return None


def _take_in(folder: EntryFolder, record: Record, data: bytes, moved: Moved) -> None:
    try:
        record = check(data, record)
    except EntryRefused as bad:
        moved.problems.append(Problem(record.digest, bad.reason, bad.detail))
        return
    for there in folder.listed(EntryFilter(digest=record.digest)):
        if problem := folder.problem(there.row):
            folder.discard([record.digest], Miss("damaged", problem.detail))
    outcome = folder.write(record, [memoryview(data)], may_evict=False)
    if outcome == "refused" and folder.trouble:
        raise BadInput(
            f"{folder.trouble}. {what_to_do(folder.folder / 'index.sqlite')}; {moved.outcomes['stored']} entries are in"
        )
    moved.outcomes[outcome] += 1
    if outcome == "stored":
        moved.nbytes += record.nbytes
