"""A cache folder: one checksummed file an entry, written whole or not at all, and an index. Imports no torch."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Literal, TypeVar

from hypic_rag.atomic_write import clear_away
from hypic_rag.cache.header import EntryRefused, header_of
from hypic_rag.cache.key import Identity
from hypic_rag.cache.record import Record
from hypic_rag.cache.report import Miss, Problem
from hypic_rag.cache.tiers import index, index_queries
from hypic_rag.cache.tiers.circuit_breaker import CircuitBreaker
from hypic_rag.cache.tiers.files import (
    all_files,
    entry_path,
    finish,
    is_left_over,
    is_unfinished,
    read_checked,
    write_unfinished,
)
from hypic_rag.cache.tiers.index import Index, Row
from hypic_rag.cache.tiers.index_queries import EntryFilter, EntryInfo, Tombstone
from hypic_rag.errors import HypicError
from hypic_rag.paths import exists

log = logging.getLogger(__name__)

STORE_ERRORS = (sqlite3.Error, OSError, HypicError, UnicodeDecodeError)

Outcome = Literal["stored", "exists", "refused"]
Answer = TypeVar("Answer")
DELETED = Miss("deleted")
ALL = EntryFilter()


class EntryFolder:
    """FOLDER/index.sqlite and FOLDER/ab/DIGEST.safetensors, within ``budget`` bytes (None: unlimited).

    Threads and processes of one machine may share a folder. A row is written only when its file is whole and
    synced; files are replaced and removed only under the index's write lock. So a row's file is the one it
    describes, or the difference is found by size and CRC-32 (which finds any burst of up to 32 wrong bits).
    Opening raises StoreMismatch (made by a newer version) or StoreDamaged (folder cannot be used); after that
    no method raises for anything found on the disk.
    """

    def __init__(self, folder: Path | str, budget: int | None = None):
        self.folder = Path(folder)
        self.budget = budget
        self.n_evicted = 0  # by this process
        self._index = Index(self.folder)
        self._health = CircuitBreaker(log)
        self._warned: set[str] = set()
        self._shrink()

    @property
    def trouble(self) -> str:
        """What did not work when it was tried last; empty where all did."""
        return "; ".join(filter(None, (self._index.read_only, self._health.trouble)))

    def read(self, asked: Identity, parse: Callable[[memoryview], Answer]) -> Answer | Miss:
        """Return what ``parse`` makes of the file, in memory that can be written, checked by size and checksum.

        Where that or ``parse`` raises EntryRefused the file is removed, so that the next write stores anew.
        """

        def attempt() -> Answer | Miss:
            for _ in range(3):  # another process may evict or store the entry while we read it
                row = self._index.get(asked.digest)
                if row is None:
                    return self._index.why_absent(asked.digest)
                try:
                    parsed = parse(read_checked(self.folder, row, asked))
                except EntryRefused as bad:
                    if bad.reason == "unreadable" or self._remove_bad(row, bad):  # what cannot be looked at stays
                        return Miss(bad.reason, bad.detail)
                else:
                    self._index.touch(asked.digest)
                    return parsed
            return Miss("unreadable", "other processes kept changing it while it was read")

        return self._try("read", "read", attempt, lambda reason: Miss("unreadable", reason))

    def write(
        self, record: Record, pieces: Sequence[memoryview], keep: Set[str] = frozenset(), may_evict: bool = True
    ) -> Outcome:
        """Store a file of these pieces, evicting what is worth least, but nothing pinned or in ``keep``.

        "exists": a copy is stored already and stays. "refused": it was not stored (too large for the budget,
        a full or read-only disk), which is logged as a warning once. may_evict: else it must fit as it is.
        """
        if self.budget is not None and record.nbytes > self.budget:
            return self._refuse(record.nbytes)

        def attempt() -> Outcome:
            if self._index.read_only:
                self._index.read(index.total)  # where it is time, tries whether it can be written again
                if self._index.read_only:
                    return "refused"
            unfinished = write_unfinished(self.folder, record.digest, pieces)
            try:
                return self._index.write(lambda db: self._commit(db, record, unfinished, keep, may_evict))
            except STORE_ERRORS:
                if not unfinished.exists():
                    self._take_back(record.digest)
                raise
            finally:
                clear_away(unfinished)

        return self._try("write", "written, entries stay in memory", attempt, lambda _: "refused")

    def contains(self, digest: str) -> bool:
        """Return whether there is a row; the file is not looked at."""
        return self._try("read", "read", lambda: self._index.get(digest) is not None, lambda _: False)

    def touch(self, digest: str) -> None:
        """Note a use of the entry, so that it is not evicted while it serves from memory."""
        self._index.touch(digest)

    def discard(self, digests: Iterable[str], why: Miss = DELETED) -> int:
        """Remove entries, pinned or not; how many were here. why: what later lookups say."""
        n_removed = 0

        def attempt() -> None:
            nonlocal n_removed
            for digest in digests:
                row = self._index.get(digest)
                n_removed += row is not None and self._remove(row, why)

        self._try("delete", "written, entries stay there", attempt, lambda _: None)
        return n_removed

    def pin(self, digests: Iterable[str], pinned: bool = True) -> int:
        """Keep entries for good, until unpinned: they are not evicted to make room. Return how many were not so before.

        Raises sqlite3.Error, OSError or HypicError.
        """
        return self._index.write(lambda db: index_queries.pin(db, digests, pinned))

    def listed(self, wanted: EntryFilter = ALL, limit: int | None = None) -> list[EntryInfo]:
        """List entries, the newest first. Raises sqlite3.Error, OSError or HypicError."""
        return self._index.read(lambda db: index_queries.listed(db, wanted, limit))

    def gone(self, digest: str) -> list[Tombstone]:
        """Return what is remembered of digests that begin so. Raises sqlite3.Error, OSError or HypicError."""
        return self._index.read(lambda db: index_queries.gone(db, digest))

    def totals(self) -> tuple[int, int]:
        """Count entries, and bytes of their files."""
        return self._try("read", "read", self._index.totals, lambda _: (0, 0))

    def of_namespace(self, namespace: str) -> set[str]:
        """Return the digests of the entries here whose keys have it."""
        return self._try("read", "read", lambda: self._index.of_namespace(namespace), lambda _: set())

    def by_namespace(self) -> dict[str, tuple[int, int]]:
        """Count, for every namespace that has any, entries and bytes of their files."""
        return self._try("read", "read", self._index.by_namespace, lambda _: {})

    def contents(self, row: Row) -> memoryview:
        """Read an entry's file. Raises EntryRefused if it is not what was stored, OSError for want of handles."""
        return read_checked(self.folder, row, row)

    def problem(self, row: Row) -> Problem | None:
        """Say what is wrong with one entry's file. Changes nothing. Raises OSError, sqlite3.Error."""
        try:
            header_of(self.contents(row), row)
        except EntryRefused as bad:
            if self._index.get(row.digest) == row:  # else it was evicted or replaced meanwhile
                return Problem(row.digest, bad.reason, bad.detail)
        return None

    def verify(self) -> list[Problem]:
        """Read and check every file. Changes nothing."""
        try:
            problems = [Problem("", "index", text) for text in self._index.check()]
            problems += filter(None, map(self.problem, self._index.rows()))
            return problems + self._sweep(remove=False)
        except STORE_ERRORS as error:
            return [Problem("", "unreadable", str(error))]

    def gc(self) -> list[Problem]:
        """Remove files without a row, rows without a file, and what writers that died left unfinished.
        Contents are not read. Returns what was removed."""

        def attempt() -> list[Problem]:
            if self._index.read_only:
                return []
            lost = []
            for row in self._index.rows():
                if not exists(entry_path(self.folder, row.digest)) and self._remove(row, Miss("missing")):
                    lost.append(Problem(row.digest, "missing", "its file is gone"))
            return lost + self._sweep(remove=True)

        return self._try("delete", "cleaned", attempt, lambda _: [])

    def close(self) -> None:
        self._index.close()

    def _try(self, doing: str, what: str, attempt: Callable[[], Answer], otherwise: Callable[[str], Answer]) -> Answer:
        """Return the attempt's answer, or where the disk fails what ``otherwise`` makes of the reason."""
        if self._health.rests(doing):
            return otherwise(self._health.of(doing))
        began = time.monotonic()
        try:
            answer = attempt()
        except STORE_ERRORS as error:
            message = f"cache folder {self.folder} cannot be {what}: {error}"
            self._health.failed(doing, message, time.monotonic() - began)
            return otherwise(str(error))
        self._health.worked(doing)
        return answer

    def _commit(
        self, db: sqlite3.Connection, record: Record, unfinished: Path, keep: Set[str], may_evict: bool
    ) -> Outcome:
        path = entry_path(self.folder, record.digest)
        row = index.select(db, record.digest)
        if row is not None:
            if exists(path) and path.stat().st_size == row.nbytes:
                return "exists"
            index.delete(db, row, Miss("damaged"))
        self._index.write_touches(db)
        if not self._make_room(db, record.nbytes, keep, may_evict):
            return self._refuse(record.nbytes)
        finish(unfinished, path)
        index.insert(db, record)
        return "stored"

    def _take_back(self, digest: str) -> None:
        """Remove the file of a row that could not be written, say on a disk that became full between the two."""

        def change(db: sqlite3.Connection) -> None:
            if index.select(db, digest) is None:
                self._unlink(entry_path(self.folder, digest))

        try:
            self._index.write(change)
        except STORE_ERRORS as error:  # gc finds it
            log.debug("a file without a row stays in %s: %s", self.folder, error)

    def _refuse(self, nbytes: int) -> Outcome:
        message = "an entry of %d bytes was not stored in %s: its budget of %d bytes has no room; raise it"
        self._warn_once("budget", message, nbytes, self.folder, self.budget)
        return "refused"

    def _make_room(self, db: sqlite3.Connection, nbytes: int, keep: Set[str], may_evict: bool) -> bool:
        """Evict until ``nbytes`` fit the budget; if they cannot, evict nothing and return False."""
        if self.budget is None:
            return True
        excess = index.total(db)[1] + nbytes - self.budget
        if excess <= 0:
            return True
        victims = index.victims(db, excess, keep) if may_evict else None
        if victims is None:
            return False
        for row in victims:
            index.evict(db, row)
            self._unlink(entry_path(self.folder, row.digest))
        self.n_evicted += len(victims)
        return True

    def _shrink(self) -> None:
        """Shrink to a budget that is smaller than what an earlier process left."""

        def attempt() -> None:
            if self.budget is not None and self._index.read(index.total)[1] > self.budget and not self._index.read_only:
                self._index.write(lambda db: self._make_room(db, 0, frozenset(), True))

        self._try("delete", "brought within its budget", attempt, lambda _: None)

    def _remove(self, row: Row, why: Miss) -> bool:
        """Remove this copy's row and file. False if the row is no longer this copy's."""

        def change(db: sqlite3.Connection) -> bool:
            if not index.delete(db, row, why):
                return False
            self._unlink(entry_path(self.folder, row.digest))
            return True

        return self._index.write(change)

    def _remove_bad(self, row: Row, bad: EntryRefused) -> bool:
        """Remove a bad copy; where the disk cannot be written it stays, and is found bad each time."""
        try:
            return self._remove(row, Miss("damaged", str(bad)))
        except STORE_ERRORS as error:
            self._health.failed(
                "delete", f"cache folder {self.folder} cannot be written, a bad entry stays there: {error}"
            )
            return True

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # the row goes all the same; gc tries again
            self._warn_once("unlink", "cannot remove %s: %s", path, error)

    def _sweep(self, remove: bool) -> list[Problem]:
        """Find the files that no row speaks of."""
        known = {row.digest for row in self._index.rows()}
        suspects = [path for path in all_files(self.folder) if is_unfinished(path) or path.stem not in known]
        if not suspects:
            return []

        def change(db: sqlite3.Connection) -> list[Problem]:
            found = []  # asked again under the write lock: a file may have got its row since
            for path in suspects:
                digest = path.name.split(".", 1)[0]
                if is_unfinished(path):
                    if not is_left_over(path):
                        continue
                    found.append(Problem(digest, "leftover", f"unfinished file {path.name}"))
                elif index.select(db, digest) is None and path.exists():
                    found.append(Problem(digest, "orphan", f"file {path.name} has no row in the index"))
                else:
                    continue
                if remove:
                    self._unlink(path)
            return found

        return self._index.read(change) if self._index.read_only else self._index.write(change)

    def _warn_once(self, about: str, message: str, *values: object) -> None:
        level = logging.DEBUG if about in self._warned else logging.WARNING
        self._warned.add(about)
        log.log(level, message, *values)
