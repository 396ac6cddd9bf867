"""Whether what a server keeps is whole: databases, and files and rows that belong to each other."""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Set
from pathlib import Path

from hypic_qualify.durability_log import Broken
from hypic_rag.cache.archive import check
from hypic_rag.cache.header import EntryRefused
from hypic_rag.cache.record import Record
from hypic_rag.cache.tiers.disk import DiskTier

DATABASES = ("*.sqlite", "segments/*.sqlite", "collections/*/*/*.sqlite")
UNDER_WAY = ("queued", "parsing", "prefilling")


def check_databases(folder: Path) -> None:
    """Check the server's databases. folder: HYPIC_HOME/server, of no matter when. Raises Broken."""
    for path in [path for pattern in DATABASES for path in folder.glob(pattern)]:
        with copied(path) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                raise Broken(f"{path.name}: integrity_check says {found[:3]}")
            if found := db.execute("PRAGMA foreign_key_check").fetchall():
                raise Broken(f"{path.name}: foreign_key_check says {found[:3]}")
    if damaged := [path.name for path in folder.rglob("*.damaged-*")]:
        raise Broken(f"an index was found damaged: {damaged}")


def check_remote(folder: Path) -> None:
    """Check that every entry which has its record is whole there. Raises Broken."""
    for path in folder.glob("*/*.json"):
        with contextlib.suppress(ValueError, FileNotFoundError):  # a record cut short is a miss
            record = Record.from_fields(json.loads(path.read_text()))
            try:
                check(path.with_suffix(".safetensors").read_bytes(), record)
            except EntryRefused as bad:
                raise Broken(f"the remote's entry {record.digest[:8]} has a record and is {bad}") from bad
            except FileNotFoundError as error:
                raise Broken(f"the remote's entry {record.digest[:8]} has a record and no file") from error


def under_way(folder: Path, remote: Path, disk_budget: int, since: float) -> list[str]:
    """Say what a killed server was at, as far as its files tell. folder: HYPIC_HOME/server. since: seconds since
    1970 at which it began to be used."""
    found = []
    with contextlib.suppress(sqlite3.OperationalError), copied(folder / "server.sqlite") as db:
        if any(status in UNDER_WAY for (status,) in db.execute("SELECT status FROM files")):
            found.append("ingesting")
    with contextlib.suppress(sqlite3.OperationalError), copied(folder / "segments" / "index.sqlite") as db:
        nbytes, largest = db.execute("SELECT sum(nbytes), max(nbytes) FROM entry").fetchone()
        if nbytes and nbytes + largest > disk_budget:
            found.append("evicting")
    if any(folder.glob("segments/*/*.tmp")):
        found.append("writing")
    written = [path for path in folder.glob("segments/*/*.safetensors") if path.stat().st_mtime >= since]
    if written:
        last = max(written, key=lambda path: path.stat().st_mtime)
        if not (remote / last.parent.name / f"{last.stem}.json").exists():
            found.append("writing behind")
    return found


def check_nothing_left_over(folder: Path, gone: Set[str]) -> None:
    """Check a server that has started and takes no requests: no file without its row, no row without its file, and the
    words in ``gone``, of what was deleted, stand nowhere. Raises Broken."""
    if left := [*_uploads(folder), *_collections(folder), *_segments(folder), *_standing(folder, gone)]:
        raise Broken(f"{len(left)} things are left over: {'; '.join(left[:5])}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as db:
        yield db


@contextlib.contextmanager
def copied(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of a database with its log, so that the server itself has to recover what the kill has left."""
    with tempfile.TemporaryDirectory(prefix="hypic-copy-") as folder:
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{folder}/{path.name}{suffix}")
        with opened(Path(folder) / path.name) as db:
            yield db


def _uploads(folder: Path) -> Iterator[str]:
    uploads = {path.stem: path.name for path in folder.glob("uploads/*")}  # before the rows, which come later
    with opened(folder / "server.sqlite") as db:
        status = dict(db.execute("SELECT id, status FROM files").fetchall())
        making = {row[0] for row in db.execute("SELECT file_id FROM making")}
    yield from (f"the upload {name} without a row" for stem, name in uploads.items() if stem not in status)
    for file_id, at in status.items():
        if at in UNDER_WAY and file_id not in uploads:
            yield f"the {at} file {file_id} without its upload"
        if at not in UNDER_WAY and file_id in making:
            yield f"the {at} file {file_id} with segments in the making"


def _collections(folder: Path) -> Iterator[str]:
    with opened(folder / "server.sqlite") as db:
        files = {row[0] for row in db.execute("SELECT id FROM files")}
        tenants = dict(db.execute("SELECT id, tenant FROM collections").fetchall())
    for path in folder.glob("collections/*/*"):
        if tenants.get(path.name) != path.parent.name:
            yield f"the folder of a collection {path.name} without a row"
        elif (path / "store.sqlite").exists():
            with opened(path / "store.sqlite") as db:
                sources = {row[0] for row in db.execute("SELECT DISTINCT source FROM documents")}
            yield from (f"documents of the file {source} without a row" for source in sources - files)
    known = {f"{tenant}/{collection}" for collection, tenant in tenants.items()}
    with opened(folder / "segments" / "index.sqlite") as db:
        for (namespace,) in db.execute("SELECT DISTINCT namespace FROM entry"):
            if namespace.partition("/")[2] and namespace not in known:
                yield f"segments of a collection {namespace} without a row"


def _segments(folder: Path) -> Iterator[str]:
    tier = DiskTier(folder / "segments")
    try:
        yield from (f"segment {found.digest[:8]}: {found.detail}" for found in tier.verify())
    finally:
        tier.close()


def _standing(folder: Path, words: Set[str]) -> Iterator[str]:
    needles = [word.encode() for word in words]
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":  # which hold no text
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                found = [needle.decode() for needle in needles if needle in content]
                yield from (f"the deleted {word} in {path.relative_to(folder)}" for word in found)
