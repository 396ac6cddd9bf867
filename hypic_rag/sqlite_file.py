"""SQLite files: opened, written in transactions, read where they cannot be written, and what their errors mean.

All that is kept in SQLite is opened here, in WAL mode. Values of rows are checked as they leave, each by its column.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from hypic_rag.locks import StateLock
from hypic_rag.sqlite_rows import Columns, DamagedRow, Made, check_rows

BUSY_SECONDS = 60.0  # that other writers are waited for
LOGS = ("-wal", "-journal")  # with these suffixes lie changes that are not in the file yet
LITTLE_SPACE = 2**20  # bytes; with less SQLite cannot even lay out what it needs to read
DAMAGE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Of which ``is_damage`` tells what each is; the second is of an error message that quotes garbage."""
SIGNS_OF_DAMAGE = (
    "no such table", "no such column", "no such index", "no such trigger", "already exists", "duplicate column",
    "malformed", "could not decode", "integer overflow",
)  # fmt: skip


class UnreadLog(sqlite3.OperationalError):
    """The file is older than its log, which cannot be read."""


class Changed(sqlite3.OperationalError):
    """Another process wrote while the file was only read."""


class SqliteFile:
    """One connection, used by one thread at a time; a commit is on the disk. Other processes may use the file too.

    Where it cannot be written (a read-only or a full disk, permissions) it is read, as ``connect_read_only`` says, and
    each ``writing`` tries again.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        told: Callable[[Exception], Exception],
        *,
        columns: Columns,
        made: Made = lambda cursor, row: row,
        pragmas: Sequence[str] = (),
        check: Callable[[sqlite3.Connection], None] = lambda connection: None,
    ):
        """what: it is called where a forked child uses it. told: what an error of SQLite's is raised as; itself, where
        it is to come out as it is. columns, made: see ``check_rows``. check: raises where what was opened is not what
        it should be."""
        self._lock = StateLock(what)  # first, so that a copy or a pickle is refused by it
        self.path = path
        self._told, self._columns, self._made, self._pragmas, self._check = told, columns, made, pragmas, check
        self._is_read_only = False
        self._seen: object = None  # see connect_read_only
        with self._errors_told():
            self.connection = self._opened()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give one consistent view to everything read inside. Inside ``writing`` it is part of that transaction."""
        with self._lock, self._errors_told():
            if self._is_old():
                self._reopen()
            with self._transaction("BEGIN") as connection:
                yield connection
            if self._is_old():
                raise Changed("another process wrote while it was read")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Write all that is written inside, or none of it."""
        with self._lock, self._errors_told():
            if self._is_read_only:
                self._reopen()
            with self._transaction("BEGIN IMMEDIATE") as connection:
                yield connection

    def compact(self) -> None:
        """Take what was deleted out of the log too, in which the pages before a deletion still stand;
        not while another process reads."""
        with self._lock, self._errors_told():
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the connection; in a forked child do nothing, since it is the parent's."""
        if not self._lock.is_here:
            return
        with self._lock:
            self.connection.close()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        if self.connection.in_transaction:  # which this is part of
            yield self.connection
            return
        with transaction(self.connection, begin):
            yield self.connection

    def _opened(self) -> sqlite3.Connection:
        try:
            db = connect(self.path, self._pragmas)
            self._is_read_only, self._seen = False, None
        except sqlite3.OperationalError as error:
            if is_damage(error) or is_busy(error) or not self.path.is_file():
                raise
            db, self._seen = connect_read_only(self.path)
            self._is_read_only = True
        try:
            check_rows(db, self._columns, self._made)
            self._check(db)
        except BaseException:
            db.close()
            raise
        return db

    def _is_old(self) -> bool:
        return self._seen is not None and state_of(self.path) != self._seen

    def _reopen(self) -> None:
        before = self.connection
        self.connection = self._opened()
        before.close()

    @contextlib.contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE_ERRORS as error:
            told = self._told(error)
            if told is error:
                raise
            raise told from error


def connect(path: Path, pragmas: Sequence[str] = (), busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Connect to read and to write; the caller serializes its threads, and begins transactions with ``transaction``.

    The file is made where it is missing. Raises sqlite3.Error.
    """
    return _prepared(str(path), ("journal_mode = WAL", *pragmas), busy_seconds, uri=False)


def connect_read_only(path: Path) -> tuple[sqlite3.Connection, object]:
    """Connect to a file that need not, or cannot, be written, and return the state that
    it has to stay in, None for any.

    Beside a file in WAL mode SQLite must be able to write, or find what another process has written there. Where it
    does neither, the file is opened as one that nobody changes ("immutable"): its log is not read, and what others
    write is not seen, or in part. So that is done only where there is no log, and rows are current, and of one moment,
    only where ``state_of`` the file is still the one returned here, before they are read and after.
    Raises UnreadLog, sqlite3.Error.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        return _prepared(address, ("schema_version",)), None
    except sqlite3.OperationalError as error:
        if is_damage(error) or is_busy(error):
            raise
    state = state_of(path)
    for log in (path.with_name(path.name + suffix) for suffix in LOGS):
        if log.exists() and log.stat().st_size:
            raise UnreadLog(f"{log.name} has changes that cannot be read where nothing can be written")
    return _prepared(f"{address}&immutable=1", ("schema_version",)), state


def _prepared(
    address: str, pragmas: Sequence[str], busy_seconds: float = BUSY_SECONDS, uri: bool = True
) -> sqlite3.Connection:
    db = sqlite3.connect(address, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=uri)
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Write all that is written inside, or none of it. begin: "BEGIN IMMEDIATE", say.

    The caller keeps other threads from the connection.
    """
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:  # COMMIT's own too: what could not be written would else stay open
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def state_of(path: Path) -> object:
    """Return what changes with what a file and its logs hold."""
    state: list[tuple[int, ...]] = []
    for suffix in ("", *LOGS):
        try:
            stat = path.with_name(path.name + suffix).stat()
            state.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            state.append(())
    return state


def is_damage(error: Exception) -> bool:
    """Return whether the error can only come from a bad file; a lock, a full disk, a bad path is no damage."""
    if isinstance(error, UnicodeDecodeError | DamagedRow):
        return True
    if _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return True
    return any(sign in str(error).lower() for sign in SIGNS_OF_DAMAGE)


def is_busy(error: Exception | None) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def what_to_do(path: Path, error: Exception | None = None) -> str:
    """Say what to do about an error that is no damage."""
    folder = path.parent
    if isinstance(error, UnreadLog):
        return f"Use it once where {folder} can be written, or a copy of the folder"
    if is_busy(error) or isinstance(error, Changed):
        return "Another program uses it: end that, or try again"
    if _code(error) == sqlite3.SQLITE_FULL or _is_full(folder):
        return f"No space is left on the disk of {folder}: free some, then try again"
    if _code(error) == sqlite3.SQLITE_READONLY or not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is read-only: make it writable for you, or use a copy"
    return f"Check the permissions of {folder}, and the disk"


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < LITTLE_SPACE
    except OSError:
        return False


def _code(error: Exception | None) -> int:
    """Return SQLite's code without what it adds to it; 0 of an error that is not SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
