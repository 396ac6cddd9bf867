"""The SQLite file of an index: made, opened, told damaged from busy, and moved aside when damaged."""

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from filelock import FileLock, Timeout

from hypic_rag.cache.tiers.eviction import MOST_USES
from hypic_rag.errors import StoreDamaged, StoreMismatch
from hypic_rag.sqlite_file import DAMAGE_ERRORS, is_busy, is_damage, transaction, what_to_do
from hypic_rag.sqlite_file import connect as connect_to_write
from hypic_rag.sqlite_file import connect_read_only as connect_to_read
from hypic_rag.sqlite_rows import Columns, check_rows, matching, number, text, whole

log = logging.getLogger(__name__)

INDEX_VERSION = 2
BUSY_SECONDS = 10.0
FIRST = (  # version 1
    """CREATE TABLE entry (
        id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: tells a new copy from the one it replaced
        digest TEXT NOT NULL UNIQUE, nbytes INTEGER NOT NULL, checksum INTEGER NOT NULL,
        format_version INTEGER NOT NULL, n_tokens INTEGER NOT NULL, seam_tokens INTEGER NOT NULL,
        model TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,
        created REAL NOT NULL, last_used REAL NOT NULL, hits INTEGER NOT NULL)""",
    "CREATE INDEX entry_by_use ON entry (last_used, id, nbytes)",
    """CREATE TABLE gone (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        digest TEXT NOT NULL UNIQUE, reason TEXT NOT NULL, detail TEXT NOT NULL)""",
)
SECOND = (  # what version 2 has beside; version 1 may still write, and its rows get the defaults
    "ALTER TABLE entry ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE entry ADD COLUMN tokens TEXT NOT NULL DEFAULT ''",  # as in record.Record, like key
    "ALTER TABLE entry ADD COLUMN key TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE entry ADD COLUMN priority REAL NOT NULL DEFAULT 0",  # see eviction.py
    f"UPDATE entry SET priority = min(hits + 1, {MOST_USES}) * n_tokens * 1.0 / max(nbytes, 1)",
    "DROP INDEX entry_by_use",
    "CREATE INDEX entry_by_priority ON entry (pinned, priority, last_used, id, nbytes)",
    "CREATE INDEX entry_by_tokens ON entry (tokens)",
    "CREATE TABLE clock (inflation REAL NOT NULL, most_uses REAL NOT NULL)",
    f"INSERT INTO clock VALUES (0, {MOST_USES})",
    "ALTER TABLE gone ADD COLUMN tokens TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE gone ADD COLUMN key TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE gone ADD COLUMN uses INTEGER NOT NULL DEFAULT 0",  # 0: not evicted to make room
    f"PRAGMA user_version = {INDEX_VERSION}",
)
PROBES = (  # fail at once if the tables are not those of this version
    "SELECT id, digest, nbytes, checksum, format_version, n_tokens, seam_tokens, model, kind, namespace,"
    " created, last_used, hits, pinned, tokens, key, priority FROM entry LIMIT 1",
    "SELECT id, digest, reason, detail, tokens, key, uses FROM gone LIMIT 1",
    "SELECT inflation, most_uses FROM clock LIMIT 1",
)
COLUMNS: Columns = {
    "id": whole, "digest": matching("[0-9a-f]{64}"), "nbytes": whole, "checksum": whole, "format_version": whole,
    "n_tokens": whole, "seam_tokens": whole, "model": text, "kind": text, "namespace": text, "created": number,
    "last_used": number, "hits": whole, "pinned": whole, "tokens": text, "key": text, "priority": number,
    "reason": text, "detail": text, "uses": whole, "inflation": number, "most_uses": number, "seq": whole,
}  # fmt: skip
"""A digest is used as a file name."""


def open_index(path: Path, is_bad: Callable[[], bool], cause: Exception | None) -> sqlite3.Connection:
    """Open or create the index; a damaged one, or one that ``is_bad`` for ``cause``, is first moved aside.

    One process at a time, under index.lock: SQLite's own locks cover neither switching a new file to WAL nor
    moving one aside. Raises StoreMismatch if the index is of a newer version, sqlite3.Error and OSError if
    the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name("index.lock"), timeout=3 * BUSY_SECONDS, poll_interval=0.01):
        if cause is not None and is_bad():
            move_aside(path, cause)
        try:
            return connect(path)
        except DAMAGE_ERRORS as error:
            if not is_damage(error):
                raise
            move_aside(path, error)
            return connect(path)


def open_read_only(path: Path, cause: Exception, level: int = logging.WARNING) -> tuple[sqlite3.Connection, object]:
    """Open the index of a folder that cannot be written because of ``cause``, and return the state that it has to stay
    in, as of ``sqlite_file.connect_read_only``. level: at which that is logged.

    Raises StoreDamaged if there is none, or if the cause is only that others hold its locks.
    """
    if isinstance(cause, Timeout) or is_busy(cause):
        raise StoreDamaged(
            f"cache folder {path.parent} stayed locked by another process ({cause}). "
            "End the process that hangs, or name another cache folder."
        ) from cause
    if not path.is_file():
        raise StoreDamaged(
            f"cache folder {path.parent} cannot be opened: {cause}. "
            "Name a folder that can be written, or mend its permissions."
        ) from cause
    try:
        db, state = connect_to_read(path)
        db = _of_this_version(db, path, read_only=True)
    except DAMAGE_ERRORS as error:
        raise StoreDamaged(
            f"cache index {path} can be neither written ({cause}) nor read ({error}). "
            f"{what_to_do(path, error)}, or name another cache folder"
        ) from error
    log.log(level, "cache folder %s cannot be written, it is only read: %s", path.parent, cause)
    return db, state


def connect(path: Path) -> sqlite3.Connection:
    """Connect to an index of the known version, which is made if the file is new, and of an older one.
    Raises sqlite3.Error, StoreMismatch."""
    # NORMAL: a power cut may lose the last rows (their files become orphans) but not harm the index
    return _of_this_version(connect_to_write(path, ("synchronous = NORMAL",), BUSY_SECONDS), path, read_only=False)


def _of_this_version(db: sqlite3.Connection, path: Path, read_only: bool) -> sqlite3.Connection:
    """Bring an index to this version; what cannot be written is made so in memory."""
    try:
        with closing(db.execute("PRAGMA user_version")) as answer:
            version = answer.fetchone()[0]
        if version > INDEX_VERSION:
            raise StoreMismatch(
                f"cache {path} has format {version}, but this hypic-rag knows formats up to {INDEX_VERSION}. "
                "Upgrade hypic-rag, name another cache folder, or delete this one (it will be built again)."
            )
        if version < INDEX_VERSION:
            if read_only:
                db = _copy_in_memory(db)
            with transaction(db, "BEGIN IMMEDIATE"):
                for statement in (*FIRST, *SECOND) if version == 0 else SECOND:
                    db.execute(statement)
        if read_only:
            db.execute("PRAGMA query_only = ON")
        check_rows(db, COLUMNS)
        for probe in PROBES:
            db.execute(probe).fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _copy_in_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        db.backup(copy)
    except BaseException:
        copy.close()
        raise
    db.close()
    return copy


def move_aside(path: Path, cause: Exception) -> None:
    """Rename the index to index.sqlite.damaged-N, so that it can be looked at and a new one be made."""
    n = 1
    while (aside := path.with_name(f"{path.name}.damaged-{n}")).exists():
        n += 1
    log.warning("cache index %s is damaged (%s); moved to %s and a new one started", path, cause, aside.name)
    for suffix in ("-wal", "-shm", ""):  # a log left behind would be replayed into the new index
        if path.with_name(path.name + suffix).exists():
            os.replace(path.with_name(path.name + suffix), aside.with_name(aside.name + suffix))


def inode(path: Path) -> int:
    """Return a file's inode; 0 if there is no such file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
