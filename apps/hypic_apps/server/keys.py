"""API keys: kept as hashes in server.sqlite, looked up anew for every request."""

import contextlib
import hashlib
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.paths import exists

FILE = "server.sqlite"
PREFIX = "hypic-"  # by which scanners for secrets, and people, know what they see
SECRET_BYTES = 32
BUSY_SECONDS = 10.0
TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
TABLE = """CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, tenant TEXT, label TEXT NOT NULL,
    created REAL NOT NULL, revoked REAL)"""
COLUMNS = "id, tenant, label, created, revoked"


@dataclass(frozen=True)
class Key:
    """tenant: None of an operator's key, which opens /metrics alone. created, revoked: seconds since 1970; a key that
    is in force has no ``revoked``."""

    id: str
    tenant: str | None
    label: str
    created: float
    revoked: float | None


class Keys:
    """The keys of a server's folder. Any number of processes may use it at once; opened with the first use.

    What is kept of a key is its SHA-256. A slow hash, as for passwords, would protect nothing more: a key is 256 random
    bits, which nobody guesses, and the hash is computed for every request. A key is found by its hash, so no comparison
    takes longer the more of a guess is right: what the time of the look-up could tell is of the hash of the guess.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()
        self._seen = False
        self._connection: sqlite3.Connection | None = None

    def add(self, tenant: str | None, label: str = "") -> tuple[Key, str]:
        """A new key and its secret, which is told this once. Without a tenant it is an operator's.

        Raises BadInput for a tenant's name that cannot be one.
        """
        if tenant is not None and not TENANT.fullmatch(tenant):
            raise BadInput(
                f"{tenant!r} cannot name a tenant: it names a folder and a metrics label. "
                "Use up to 32 of a to z, 0 to 9 and dashes, such as acme-2"
            )
        if not label.isprintable():
            raise BadInput("the name of a key has characters that cannot be shown: use letters, digits and spaces")
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        key = Key(secrets.token_hex(4), tenant, label, time.time(), None)
        with self._database() as db:
            row = (key.id, _hash(secret), tenant, label, key.created)
            db.execute("INSERT INTO keys (id, hash, tenant, label, created) VALUES (?, ?, ?, ?, ?)", row)
        return key, secret

    def all(self) -> list[Key]:
        """The oldest first, revoked ones too."""
        if not self.exist:
            return []
        with self._database() as db:
            return [Key(*row) for row in db.execute(f"SELECT {COLUMNS} FROM keys ORDER BY created, id")]

    def revoke(self, key_id: str) -> Key:
        """From the next request on the key is refused. Raises BadInput where there is none with this id."""
        if not self.exist:
            raise BadInput("there are no keys: hypic-rag keys add makes one")
        with self._database() as db:
            db.execute("UPDATE keys SET revoked = coalesce(revoked, ?) WHERE id = ?", (time.time(), key_id))
            row = db.execute(f"SELECT {COLUMNS} FROM keys WHERE id = ?", (key_id,)).fetchone()
        if row is None:
            raise BadInput(f"there is no key {key_id!r}: hypic-rag keys list has all, by their ids")
        return Key(*row)

    def find(self, secret: str) -> Key | None:
        """The key in force with this secret."""
        with self._database() as db:
            query = f"SELECT {COLUMNS} FROM keys WHERE hash = ? AND revoked IS NULL"
            row = db.execute(query, (_hash(secret),)).fetchone()
        return Key(*row) if row else None

    @property
    def exist(self) -> bool:
        """Whether there ever was one. Neither revoking the last nor losing the file under a running server opens it to
        everybody. Makes no file. Raises BadInput where that cannot be told."""
        if not self._seen and (self._connection is not None or exists(self.folder / FILE)):
            with self._database() as db:
                self._seen = bool(db.execute("SELECT EXISTS (SELECT 1 FROM keys)").fetchone()[0])
        return self._seen

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _connect(self.folder)
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise StoreDamaged(
                    f"{self.folder / FILE} cannot be used: {error}. Check the permissions of {self.folder} and the "
                    "free space there; a copy of the file restores it"
                ) from error


def _connect(folder: Path) -> sqlite3.Connection:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(folder / FILE, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute(TABLE)
    except BaseException:
        db.close()
        raise
    return db


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
