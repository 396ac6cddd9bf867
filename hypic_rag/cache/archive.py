"""Entries of a cache folder as a tar file, and back, so that what one machine has prefilled serves on another.

An archive has ab/DIGEST.json (a record) and then ab/DIGEST.safetensors for every entry. Imports no torch.
"""

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypic_rag.cache.header import EntryRefused, header_of
from hypic_rag.cache.record import Record, checksum_of
from hypic_rag.cache.report import Miss, Problem
from hypic_rag.cache.tiers.folder import EntryFolder
from hypic_rag.cache.tiers.inventory import Listed, Wanted
from hypic_rag.errors import BadInput

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
    """The record of a file that came from elsewhere, with the whole key. Raises EntryRefused if it is not that file."""
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


def export(folder: EntryFolder, entries: Iterable[Listed], path: Path) -> Moved:
    """Into ``path``, which is replaced once all is written. What is damaged is left out. Raises OSError."""
    moved = Moved()
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
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
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return moved


def import_(folder: EntryFolder, path: Path) -> Moved:
    """From ``path``. A valid copy that is there stays, nothing is evicted, and what is damaged is left out.

    Raises BadInput where it is no tar file, or ends too early; what came before is in all the same. Raises OSError.
    """
    moved = Moved()
    record: Record | None = None
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = Path(member.name)
                content = tar.extractfile(member)
                if content is None:
                    continue
                if name.suffix == ".json" and member.size <= MOST_OF_A_RECORD:
                    record = _record(content.read(), name.stem, moved)
                elif name.suffix == ".safetensors" and record is not None and record.digest == name.stem:
                    _take_in(folder, record, content.read(), moved)
                    record = None
                elif name.suffix == ".safetensors":
                    moved.problems.append(Problem(name.stem, "orphan", "it has no record in the archive"))
    except (tarfile.TarError, EOFError) as error:
        raise BadInput(
            f"{path} is not a whole archive of segments: {error}. Make one with hypic-rag cache export FILE.tar; "
            f"{moved.outcomes['stored']} entries before that are in"
        ) from error
    return moved


def _add(tar: tarfile.TarFile, name: str, data: bytes | memoryview) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    tar.addfile(about, io.BytesIO(data))


def _record(text: bytes, digest: str, moved: Moved) -> Record | None:
    try:
        record = Record.from_fields(json.loads(text))
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
    for there in folder.listed(Wanted(digest=record.digest)):
        if problem := folder.problem(there.row):
            folder.discard([record.digest], Miss("damaged", problem.detail))
    outcome = folder.write(record, [memoryview(data)], may_evict=False)
    moved.outcomes[outcome] += 1
    if outcome == "stored":
        moved.nbytes += record.nbytes
