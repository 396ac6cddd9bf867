"""Backups: what cannot be made again of HYPIC_HOME in one archive, taken beside a running server, and put back.

In it: keys, collections and files (server.sqlite), each collection's documents and vectors, files that wait to be
ingested, settings and calibrations. Not in it: segments and models, which are made again.
"""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypic_rag.atomic_write import clear_away
from hypic_rag.collections.claim import claimed, private_folder
from hypic_rag.collections.database import FILE
from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.paths import reason

ABOUT = "backup.json"
FORMAT = 1
STORE_FILES = ("store.json", "questions.jsonl")
STORE = "store.sqlite"
KNOWN = re.compile(
    r"backup\.json|config\.toml|calibrations/[^/]+\.json|server/server\.sqlite|server/uploads/[^/]+"
    r"|server/collections/[a-z0-9-]+/[a-z0-9-]+/(store\.sqlite|store\.json|questions\.jsonl)"
)


@dataclass(frozen=True)
class Backup:
    """What is in an archive. nbytes: of the archive."""

    n_collections: int
    n_files: int
    nbytes: int


def back_up(home: Path, archive: Path) -> Backup:
    """Write the archive, whole or not at all. Raises BadInput where there is nothing to back up, or it cannot be
    written; StoreDamaged."""
    server = home / "server"
    if not (server / FILE).exists():
        raise BadInput(f"there is nothing to back up: {server} has no {FILE}. Set HYPIC_HOME to the server's")
    unfinished = archive.with_name(f"{archive.name}.part")
    try:
        with _scratch(server) as scratch:
            waiting = _linked(server / "uploads", scratch)  # before the rows that say they wait, and again after
            n_collections, n_files = _copied(server / FILE, scratch / FILE)
            waiting |= _linked(server / "uploads", scratch)
            with tarfile.open(unfinished, "w:gz" if archive.suffix in (".gz", ".tgz") else "w") as tar:
                about = scratch / ABOUT
                about.write_text(json.dumps({"format": FORMAT, "time": int(time.time()), "n_files": n_files}))
                tar.add(about, ABOUT)
                tar.add(scratch / FILE, f"server/{FILE}")
                for name in sorted(waiting):
                    tar.add(scratch / name, f"server/uploads/{name}")
                for store in sorted(server.glob(f"collections/*/*/{STORE}")):
                    _add_store(tar, store, server, scratch)
                for file in (home / "config.toml", *sorted((home / "calibrations").glob("*.json"))):
                    if file.is_file():
                        tar.add(file, str(file.relative_to(home)))
        unfinished.chmod(0o600)
        unfinished.replace(archive)
    except OSError as error:
        raise BadInput(f"{archive} cannot be written: {reason(error)}. Choose another place") from error
    finally:
        clear_away(unfinished)
    return Backup(n_collections, n_files, archive.stat().st_size)


def restore(archive: Path, home: Path) -> Backup:
    """Put an archive back into a home without collections. All of it is checked before anything is put in its place.

    Raises BadInput: it is no archive of ours, or something is there already; StoreDamaged.
    """
    server = home / "server"
    if (server / FILE).exists():
        raise BadInput(f"{server} has collections already: move it away, or set HYPIC_HOME to another folder")
    private_folder(server)
    with claimed(server, "serve"), _scratch(server) as scratch:
        try:
            with tarfile.open(archive) as tar:
                if strange := [one.name for one in tar if not (one.isfile() and KNOWN.fullmatch(one.name))]:
                    raise BadInput(f"{archive} is no backup of hypic-rag: it holds {strange[0][:80]!r}")
                tar.extractall(scratch, filter="data")
            about = json.loads((scratch / ABOUT).read_text())
            newer = about["format"] > FORMAT
        except (OSError, tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{archive} cannot be read as a backup: {error}") from error
        if newer:
            raise BadInput(f"{archive} is of a newer version of hypic-rag: upgrade this one")
        found = scratch / "server"
        for file in (found / FILE, *found.glob(f"collections/*/*/{STORE}")):
            _check(file)
        n_collections, n_files = _counts(found / FILE)
        for part in ("collections", "uploads"):
            if (found / part).exists():
                shutil.copytree(found / part, server / part, dirs_exist_ok=True)
        for file in (scratch / "config.toml", *(scratch / "calibrations").glob("*.json")):
            target = home / file.relative_to(scratch)
            if file.is_file() and not target.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(file, target)
        (found / FILE).replace(server / FILE)  # last: with it the collections are there
    return Backup(n_collections, n_files, archive.stat().st_size)


@contextlib.contextmanager
def _scratch(server: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="backup-", dir=server) as folder:
        yield Path(folder)


def _linked(uploads: Path, scratch: Path) -> set[str]:
    """Keep files that wait to be ingested, whatever becomes of them meanwhile; return their names."""
    found = set()
    for file in uploads.glob("file-*.*"):
        if file.suffix not in (".part", ".parsed"):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.link(file, scratch / file.name)
            if (scratch / file.name).exists():
                found.add(file.name)
    return found


def _add_store(tar: tarfile.TarFile, store: Path, server: Path, scratch: Path) -> None:
    folder = store.parent.relative_to(server)
    try:
        _copy(store, scratch / STORE)
    except FileNotFoundError:
        return  # deleted meanwhile
    tar.add(scratch / STORE, f"server/{folder}/{STORE}")
    clear_away(scratch / STORE)
    for name in STORE_FILES:
        with contextlib.suppress(FileNotFoundError):
            tar.add(store.parent / name, f"server/{folder}/{name}")


def _copied(database: Path, copy: Path) -> tuple[int, int]:
    _copy(database, copy)
    return _counts(copy)


def _copy(database: Path, copy: Path) -> None:
    """Copy a database that others write to, as it is at one moment. Raises FileNotFoundError, StoreDamaged."""
    database.stat()
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise StoreDamaged(f"{database} cannot be copied: {error}") from error


def _counts(database: Path) -> tuple[int, int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return tuple(  # type: ignore[return-value]
            int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in ("collections", "files")
        )


def _check(database: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(database)) as db:
            (said,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        raise StoreDamaged(f"{database.name} in the backup is damaged: {said}. Use another backup")
