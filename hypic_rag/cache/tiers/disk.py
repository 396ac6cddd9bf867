"""The disk tier: one checksummed file an entry, written whole or not at all, and an index of them."""

import logging
import sqlite3
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Literal

from hypic_rag.cache.entry import Entry, EntryRefused, pack
from hypic_rag.cache.key import SegmentKey
from hypic_rag.cache.report import Miss, Problem
from hypic_rag.cache.tiers import index
from hypic_rag.cache.tiers.files import (
    Unfinished,
    all_files,
    entry_path,
    finish,
    is_left_over,
    is_unfinished,
    read_checked,
    write_unfinished,
)
from hypic_rag.cache.tiers.index import Index, Row
from hypic_rag.errors import HypicError

log = logging.getLogger(__name__)

STORE_ERRORS = (sqlite3.Error, OSError, HypicError, UnicodeDecodeError)

Outcome = Literal["stored", "exists", "refused"]


class DiskTier:
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
        self._index = Index(self.folder)
        self._warned: set[str] = set()

    def get(self, key: SegmentKey) -> Entry | Miss:
        """The stored entry, fully checked; its tensors view the file's bytes in memory. What proves bad is removed, so
        that the next put stores anew."""
        try:
            for _ in range(3):  # another process may evict or store the entry while we read it
                row = self._index.get(key.digest)
                if row is None:
                    return self._index.why_absent(key.digest)
                try:
                    entry = read_checked(self.folder, row, key)
                except EntryRefused as bad:
                    if self._remove_bad(row, bad):
                        return Miss(bad.reason, bad.detail)
                else:
                    self._index.touch(key.digest)
                    return entry
            return Miss("unreadable", "other processes kept changing it while it was read")
        except STORE_ERRORS as error:
            self._warn_once("read", "cache folder %s cannot be read: %s", self.folder, error)
            return Miss("unreadable", str(error))

    def put(self, key: SegmentKey, entry: Entry, keep: Set[str] = frozenset()) -> Outcome:
        """Store an entry that is on the CPU, evicting the least recently used but never what is in ``keep``.

        "exists": a copy is stored already and stays. "refused": it was not stored (too large for the budget,
        a full or read-only disk), which is logged as a warning once.
        """
        if self._index.read_only:
            return "refused"
        pieces = pack(entry, key)
        nbytes = sum(len(piece) for piece in pieces)
        if self.budget is not None and nbytes > self.budget:
            return self._refuse(nbytes)
        try:
            unfinished = write_unfinished(self.folder, key.digest, pieces)
            try:
                return self._index.write(lambda db: self._commit(db, key, unfinished, keep))
            finally:
                unfinished.path.unlink(missing_ok=True)
        except STORE_ERRORS as error:
            self._warn_once("write", "cache folder %s cannot be written, entries stay in memory: %s",
                            self.folder, error)  # fmt: skip
            return "refused"

    def contains(self, digest: str) -> bool:
        """Whether there is a row; the file is not looked at."""
        try:
            return self._index.get(digest) is not None
        except STORE_ERRORS:
            return False

    def touch(self, digest: str) -> None:
        """Note a use of the entry, so that it is not evicted while it serves from memory."""
        self._index.touch(digest)

    def discard(self, digests: Iterable[str]) -> int:
        """Remove entries; how many were here."""
        n_removed = 0
        try:
            for digest in digests:
                row = self._index.get(digest)
                n_removed += row is not None and self._remove(row, Miss("deleted"))
        except STORE_ERRORS as error:
            self._warn_once("write", "cache folder %s cannot be written, entries stay there: %s",
                            self.folder, error)  # fmt: skip
        return n_removed

    def totals(self) -> tuple[int, int]:
        """Number of entries, and bytes of their files."""
        try:
            return self._index.totals()
        except STORE_ERRORS as error:
            self._warn_once("read", "cache folder %s cannot be read: %s", self.folder, error)
            return 0, 0

    def room(self) -> int | None:
        """Bytes left in the budget before something is evicted; None if unlimited."""
        return None if self.budget is None else max(0, self.budget - self.totals()[1])

    def verify(self) -> list[Problem]:
        """Read and check every file. Changes nothing."""
        try:
            problems = [Problem("", "index", text) for text in self._index.check()]
            for row in self._index.rows():
                try:
                    read_checked(self.folder, row, row)
                except EntryRefused as bad:
                    if self._index.get(row.digest) == row:  # else it was evicted or replaced meanwhile
                        problems.append(Problem(row.digest, bad.reason, bad.detail))
            return problems + self._sweep(remove=False)
        except STORE_ERRORS as error:
            return [Problem("", "unreadable", str(error))]

    def gc(self) -> list[Problem]:
        """Remove files without a row, rows without a file, and what writers that died left unfinished.
        Contents are not read. Returns what was removed."""
        if self._index.read_only:
            return []
        try:
            lost = []
            for row in self._index.rows():
                if not entry_path(self.folder, row.digest).is_file() and self._remove(row, Miss("missing")):
                    lost.append(Problem(row.digest, "missing", "its file is gone"))
            return lost + self._sweep(remove=True)
        except STORE_ERRORS as error:
            self._warn_once("write", "cache folder %s cannot be cleaned: %s", self.folder, error)
            return []

    def close(self) -> None:
        self._index.close()

    def _commit(
        self,
        db: sqlite3.Connection,
        key: SegmentKey,
        unfinished: Unfinished,
        keep: Set[str],
    ) -> Outcome:
        path = entry_path(self.folder, key.digest)
        row = index.select(db, key.digest)
        if row is not None:
            if path.is_file() and path.stat().st_size == row.nbytes:
                return "exists"
            index.delete(db, row, Miss("damaged"))
        self._index.write_touches(db)
        if not self._make_room(db, unfinished.nbytes, keep):
            return self._refuse(unfinished.nbytes)
        finish(unfinished.path, path)
        index.insert(db, key, unfinished.nbytes, unfinished.checksum)
        return "stored"

    def _refuse(self, nbytes: int) -> Outcome:
        message = "an entry of %d bytes was not stored in %s: its budget of %d bytes has no room; raise it"
        self._warn_once("budget", message, nbytes, self.folder, self.budget)
        return "refused"

    def _make_room(self, db: sqlite3.Connection, nbytes: int, keep: Set[str]) -> bool:
        """Evict until ``nbytes`` fit the budget; if they cannot, evict nothing and return False."""
        if self.budget is None:
            return True
        excess = index.total(db)[1] + nbytes - self.budget
        if excess <= 0:
            return True
        victims = []
        for row in index.least_recently_used(db):
            if excess <= 0:
                break
            if row.digest not in keep:
                victims.append(row)
                excess -= row.nbytes
        if excess > 0:
            return False
        for row in victims:
            index.delete(db, row, Miss("evicted", "from disk, to make room"))
            self._unlink(entry_path(self.folder, row.digest))
        return True

    def _remove(self, row: Row, why: Miss) -> bool:
        """Remove this copy's row and file. False if the row is no longer this copy's."""

        def change(db: sqlite3.Connection) -> bool:
            if not index.delete(db, row, why):
                return False
            self._unlink(entry_path(self.folder, row.digest))
            return True

        return self._index.write(change)

    def _remove_bad(self, row: Row, bad: EntryRefused) -> bool:
        """As _remove; where the disk cannot be written the bad copy stays, and is found bad each time."""
        try:
            return self._remove(row, Miss("damaged", str(bad)))
        except STORE_ERRORS as error:
            self._warn_once("write", "cache folder %s cannot be written, a bad entry stays there: %s",
                            self.folder, error)  # fmt: skip
            return True

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # the row goes all the same; gc tries again
            self._warn_once("unlink", "cannot remove %s: %s", path, error)

    def _sweep(self, remove: bool) -> list[Problem]:
        """Files that no row speaks of."""
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
