"""The index of a cache folder: one row an entry, and why entries that were here are gone."""

import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypic_rag.cache.key import SegmentKey
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.index_file import DAMAGE_ERRORS, inode, is_damage, open_index, open_read_only
from hypic_rag.errors import HypicError

log = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000  # digests of entries no longer here
TOUCH_SECONDS, TOUCH_ROWS = 5.0, 64  # uses are written after so long or so many
COLUMNS = "id, digest, nbytes, checksum, format_version, n_tokens, seam_tokens"
DIGEST = re.compile("[0-9a-f]{64}")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One stored entry. id: of this copy, never given twice. nbytes, checksum: of the whole file."""

    id: int
    digest: str
    nbytes: int
    checksum: int
    format_version: int
    n_tokens: int
    seam_tokens: int


class Index:
    """FOLDER/index.sqlite in WAL mode; any number of threads and processes may share it.

    A damaged index is moved to index.sqlite.damaged-N and a new one started, with a warning. In a folder that
    cannot be written an existing index is only read (``read_only``). Raises StoreMismatch if a newer
    hypic-rag made the index, StoreDamaged if the folder can be neither written nor read.
    """

    def __init__(self, folder: Path):
        self.path = folder / "index.sqlite"
        self.read_only = False
        self._lock = threading.RLock()
        self._touches: dict[str, tuple[float, int]] = {}  # digest -> last used, times used
        self._flushed = time.monotonic()
        self._inode = 0
        self._db = self._open()

    def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a query. Raises sqlite3.Error, OSError or HypicError."""
        return self._run(query, "BEGIN DEFERRED")

    def write(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a change that no other thread or process can cut into; it happens whole or not at all. It is
        run a second time if the index proves damaged. Raises sqlite3.Error, OSError or HypicError."""
        return self._run(change, "BEGIN IMMEDIATE")

    def get(self, digest: str) -> Row | None:
        return self.read(lambda db: select(db, digest))

    def rows(self) -> list[Row]:
        return self.read(lambda db: [as_row(values) for values in db.execute(f"SELECT {COLUMNS} FROM entry")])

    def why_absent(self, digest: str) -> Miss:
        query = "SELECT reason, detail FROM gone WHERE digest = ?"
        found = self.read(lambda db: db.execute(query, (digest,)).fetchone())
        return Miss(*found) if found else Miss("never_seen")

    def totals(self) -> tuple[int, int]:
        """Number of entries, and bytes of their files."""
        return self.read(total)

    def check(self) -> list[str]:
        """What SQLite finds wrong with the file."""
        answer = self.read(lambda db: db.execute("PRAGMA quick_check").fetchall())
        return [text for (text,) in answer if text != "ok"]

    def touch(self, digest: str) -> None:
        """Note a use. Written later, many at once: it only guides eviction and may be lost in a crash."""
        with self._lock:
            n_uses = self._touches.get(digest, (0.0, 0))[1]
            self._touches[digest] = (time.time(), n_uses + 1)
            due = len(self._touches) >= TOUCH_ROWS or time.monotonic() - self._flushed >= TOUCH_SECONDS
        if due:
            self.flush()

    def flush(self) -> None:
        """Write the uses noted so far; what cannot be written is dropped."""
        try:
            if not self.read_only:
                self.write(self.write_touches)
        except (sqlite3.Error, OSError, HypicError) as error:
            log.debug("uses of cache entries were not recorded: %s", error)
        with self._lock:
            self._touches.clear()

    def write_touches(self, db: sqlite3.Connection) -> None:
        """For use inside a change."""
        touches, self._touches, self._flushed = self._touches, {}, time.monotonic()
        update = "UPDATE entry SET last_used = max(last_used, ?), hits = hits + ? WHERE digest = ?"
        db.executemany(update, [(when, n_uses, digest) for digest, (when, n_uses) in touches.items()])

    def close(self) -> None:
        with self._lock:
            self.flush()
            self._db.close()

    def _run(self, work: Callable[[sqlite3.Connection], Result], begin: str) -> Result:
        with self._lock:
            try:
                return self._attempt(work, begin)
            except DAMAGE_ERRORS as error:
                if self.read_only or not is_damage(error):
                    raise
                self._db.close()
                self._db = self._open(cause=error)
            return self._attempt(work, begin)

    def _attempt(self, work: Callable[[sqlite3.Connection], Result], begin: str) -> Result:
        if not self.read_only and inode(self.path) != self._inode:  # moved aside by another, or deleted
            self._db.close()
            self._db = self._open()
        self._db.execute(begin)
        try:
            result = work(self._db)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return result

    def _open(self, cause: Exception | None = None) -> sqlite3.Connection:
        """cause: the damage met in the file open so far, unless another process has moved that aside."""
        bad_inode, self._inode = self._inode, -1  # if this fails, the next use tries again
        try:
            db = open_index(self.path, is_bad=lambda: inode(self.path) == bad_inode, cause=cause)
        except (sqlite3.Error, OSError, NotImplementedError) as error:  # the last: no file locks
            db = open_read_only(self.path, error)
            self.read_only = True
        self._inode = inode(self.path)
        return db


def as_row(values: tuple[object, ...]) -> Row:
    """Raises the error of a damaged index if these cannot be a row: a flipped bit may change even types, and
    the digest is used as a file name."""
    row = Row(*values)  # type: ignore[arg-type]
    numbers_are_numbers = all(isinstance(value, int) for value in (row.id, *values[2:]))
    if not (numbers_are_numbers and isinstance(row.digest, str) and DIGEST.fullmatch(row.digest)):
        raise sqlite3.DatabaseError(f"could not decode row {values}")
    return row


def select(db: sqlite3.Connection, digest: str) -> Row | None:
    found = db.execute(f"SELECT {COLUMNS} FROM entry WHERE digest = ?", (digest,)).fetchone()
    return as_row(found) if found else None


def total(db: sqlite3.Connection) -> tuple[int, int]:
    """Number of entries, and bytes of their files."""
    n_entries, nbytes = db.execute("SELECT count(*), coalesce(sum(nbytes), 0) FROM entry").fetchone()
    return n_entries, nbytes


def insert(db: sqlite3.Connection, key: SegmentKey, nbytes: int, checksum: int) -> None:
    now = time.time()
    values = (key.digest, nbytes, checksum, key.format_version, key.n_tokens, key.seam_tokens)
    db.execute(
        "INSERT INTO entry (digest, nbytes, checksum, format_version, n_tokens, seam_tokens, model, kind,"
        " namespace, created, last_used, hits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (*values, key.model, key.kind, key.namespace, now, now),
    )
    db.execute("DELETE FROM gone WHERE digest = ?", (key.digest,))


def delete(db: sqlite3.Connection, row: Row, why: Miss) -> bool:
    """Forget this very copy and remember why. False if it is gone or another has taken its place."""
    if not db.execute("DELETE FROM entry WHERE id = ? AND digest = ?", (row.id, row.digest)).rowcount:
        return False
    insertion = "INSERT OR REPLACE INTO gone (digest, reason, detail) VALUES (?, ?, ?)"
    new_id = db.execute(insertion, (row.digest, why.reason, why.detail)).lastrowid or 0
    db.execute("DELETE FROM gone WHERE id <= ?", (new_id - MAX_REMEMBERED,))
    return True


def least_recently_used(db: sqlite3.Connection) -> Iterator[Row]:
    for values in db.execute(f"SELECT {COLUMNS} FROM entry ORDER BY last_used, id"):
        yield as_row(values)
