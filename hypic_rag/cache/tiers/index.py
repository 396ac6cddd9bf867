"""The index of a cache folder: one row an entry, and why entries that were here are gone."""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypic_rag.cache.record import Record
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.eviction import MOST_USES, learnt, priority
from hypic_rag.cache.tiers.index_file import inode, open_index, open_read_only
from hypic_rag.errors import HypicError
from hypic_rag.locks import StateLock
from hypic_rag.sqlite_file import DAMAGE_ERRORS, Changed, is_damage, state_of, transaction

log = logging.getLogger(__name__)

MAX_REMEMBERED = 100_000  # digests of entries no longer here
TOUCH_SECONDS, TOUCH_ROWS = 5.0, 64  # uses are written after so long or so many
COLUMNS = "id, digest, nbytes, checksum, format_version, n_tokens, seam_tokens"
RETRY_SECONDS = 30.0  # what could only be read is tried again after so long

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
    cannot be written an existing index is only read (``read_only``), and now and then tried again. Raises
    StoreMismatch if a newer hypic-rag made the index, StoreDamaged if the folder can be neither written nor read.
    """

    def __init__(self, folder: Path):
        self.path = folder / "index.sqlite"
        self.read_only = ""
        """Why it is only read; empty where it is not."""
        self._retry_at = 0.0
        self._lock = StateLock(f"cache index {self.path}")
        self._touches: dict[str, tuple[float, int]] = {}  # digest -> last used, times used
        self._flushed = time.monotonic()
        self._inode = 0
        self._seen: object = None  # see connect_read_only
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
        return self.read(lambda db: [Row(*values) for values in db.execute(f"SELECT {COLUMNS} FROM entry")])

    def why_absent(self, digest: str) -> Miss:
        query = "SELECT reason, detail FROM gone WHERE digest = ?"
        found = self.read(lambda db: db.execute(query, (digest,)).fetchone())
        return Miss(*found) if found else Miss("never_seen")

    def totals(self) -> tuple[int, int]:
        """Count entries, and bytes of their files."""
        return self.read(total)

    def of_namespace(self, namespace: str) -> set[str]:
        """Return the digests of a namespace's entries."""
        query = "SELECT digest FROM entry WHERE namespace = ?"
        return self.read(lambda db: {digest for (digest,) in db.execute(query, (namespace,))})

    def by_namespace(self) -> dict[str, tuple[int, int]]:
        """Count, for every namespace that has any, entries and bytes of their files."""
        query = "SELECT namespace, count(*), sum(nbytes) AS nbytes FROM entry GROUP BY namespace"
        return self.read(lambda db: {name: (n, nbytes) for name, n, nbytes in db.execute(query)})

    def check(self) -> list[str]:
        """Return what SQLite finds wrong with the file."""
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
        """Write the uses that were noted, inside a change."""
        touches, self._touches, self._flushed = self._touches, {}, time.monotonic()
        now, most = clock(db)
        update = (
            "UPDATE entry SET last_used = max(last_used, :when), hits = hits + :n,"  # the others are those before
            " priority = :L + min(hits + :n + 1, :most) * n_tokens * 1.0 / max(nbytes, 1)"
            " WHERE digest = :digest"
        )
        rows = [{"when": when, "n": n, "L": now, "most": most, "digest": name} for name, (when, n) in touches.items()]
        db.executemany(update, rows)

    def close(self) -> None:
        if not self._lock.is_here:  # its connection is the parent's
            return
        with self._lock:
            self.flush()
            self._db.close()

    def _run(self, work: Callable[[sqlite3.Connection], Result], begin: str) -> Result:
        with self._lock:
            try:
                return self._attempt(work, begin)
            except Changed:
                pass
            except DAMAGE_ERRORS as error:
                # its constraints hold for all that is ever written: what breaks one was not
                if self.read_only or not (is_damage(error) or isinstance(error, sqlite3.IntegrityError)):
                    raise
                self._db.close()
                self._db = self._open(cause=error)
            return self._attempt(work, begin)

    def _attempt(self, work: Callable[[sqlite3.Connection], Result], begin: str) -> Result:
        if self.read_only:
            is_stale = time.monotonic() >= self._retry_at or self._is_old()
        else:
            is_stale = inode(self.path) != self._inode  # moved aside by another, or deleted
        if is_stale:
            self._db.close()
            self._db = self._open()
        if self._db.in_transaction:  # left by an interrupt
            self._db.execute("ROLLBACK")
        with transaction(self._db, begin):
            answer = work(self._db)
        if self._is_old():
            raise Changed("another process wrote to the index while it was read")
        return answer

    def _is_old(self) -> bool:
        return self._seen is not None and state_of(self.path) != self._seen

    def _open(self, cause: Exception | None = None) -> sqlite3.Connection:
        """cause: the damage met in the file open so far, unless another process has moved that aside."""
        bad_inode, self._inode = self._inode, -1  # if this fails, the next use tries again
        try:
            db = open_index(self.path, is_bad=lambda: inode(self.path) == bad_inode, cause=cause)
        except (sqlite3.Error, OSError, NotImplementedError) as error:  # the last: no file locks
            level = logging.DEBUG if self.read_only else logging.WARNING
            self._retry_at = time.monotonic() + RETRY_SECONDS
            db, self._seen = open_read_only(self.path, error, level)
            self.read_only = f"cache folder {self.path.parent} cannot be written, it is only read: {error}"
        else:
            if self.read_only:
                log.info("cache folder %s can be written again", self.path.parent)
            self.read_only, self._seen = "", None
        self._inode = inode(self.path)
        return db


def select(db: sqlite3.Connection, digest: str) -> Row | None:
    found = db.execute(f"SELECT {COLUMNS} FROM entry WHERE digest = ?", (digest,)).fetchone()
    return Row(*found) if found else None


def total(db: sqlite3.Connection) -> tuple[int, int]:
    """Count entries, and bytes of their files."""
    n_entries, nbytes = db.execute("SELECT count(*), coalesce(sum(nbytes), 0) AS nbytes FROM entry").fetchone()
    return n_entries, nbytes


def clock(db: sqlite3.Connection) -> tuple[float, float]:
    """Return L of ``eviction.py``, and how many uses count at most."""
    inflation, most_uses = db.execute("SELECT inflation, most_uses FROM clock").fetchone() or (0.0, float(MOST_USES))
    return inflation, most_uses


def insert(db: sqlite3.Connection, record: Record) -> None:
    now, key = time.time(), record.key
    if uses := _uses_before(db, record.digest):
        db.execute("UPDATE clock SET most_uses = ?", (learnt(clock(db)[1], uses),))
    inflation, most = clock(db)
    worth = priority(inflation, 1, record.n_tokens, record.nbytes, most)
    db.execute(
        "INSERT INTO entry (digest, nbytes, checksum, format_version, n_tokens, seam_tokens, model, kind,"
        " namespace, created, last_used, hits, tokens, key, priority) VALUES (?,?,?,?,?,?,?,?,?,?,?,0,?,?,?)",
        (record.digest, record.nbytes, record.checksum, record.format_version, record.n_tokens, record.seam_tokens,
         key["model"], key["kind"], key["namespace"], now, now, record.tokens, json.dumps(dict(key)), worth),
    )  # fmt: skip
    db.execute("DELETE FROM gone WHERE digest = ?", (record.digest,))


def _uses_before(db: sqlite3.Connection, digest: str) -> int:
    """Return the uses of one that was evicted not long ago; else 0."""
    query = (
        "SELECT uses FROM gone WHERE digest = ? AND uses > 0"
        " AND id >= (SELECT seq FROM sqlite_sequence WHERE name = 'gone') - (SELECT count(*) FROM entry)"
    )
    found = db.execute(query, (digest,)).fetchone()
    return found[0] if found else 0


def delete(db: sqlite3.Connection, row: Row, why: Miss, makes_room: bool = False) -> bool:
    """Forget this very copy and remember why. False if it is gone or another has taken its place."""
    insertion = (
        "INSERT OR REPLACE INTO gone (digest, reason, detail, tokens, key, uses)"
        " SELECT digest, ?, ?, tokens, key, (hits + 1) * ? FROM entry WHERE id = ? AND digest = ?"
    )
    made = db.execute(insertion, (why.reason, why.detail, makes_room, row.id, row.digest))
    if not made.rowcount:
        return False
    db.execute("DELETE FROM gone WHERE id <= ?", ((made.lastrowid or 0) - MAX_REMEMBERED,))
    db.execute("DELETE FROM entry WHERE id = ?", (row.id,))
    return True


def victims(db: sqlite3.Connection, excess: int, keep: Set[str]) -> list[Row] | None:
    """Choose what to evict so that ``excess`` bytes come free, worth least first; None where that is not enough."""
    found = []
    query = f"SELECT {COLUMNS} FROM entry WHERE pinned = 0 ORDER BY priority, last_used, id"
    for values in db.execute(query):
        row = Row(*values)
        if row.digest not in keep:
            found.append(row)
            excess -= row.nbytes
        if excess <= 0:
            return found
    return None


def evict(db: sqlite3.Connection, row: Row) -> None:
    """Delete a row to make room: L becomes its priority."""
    query = "UPDATE clock SET inflation = max(inflation, (SELECT priority FROM entry WHERE id = ?))"
    db.execute(query, (row.id,))
    delete(db, row, Miss("evicted", "from disk, to make room"), makes_room=True)
