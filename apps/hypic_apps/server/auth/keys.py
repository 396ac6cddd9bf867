"""API keys: kept as hashes in server.sqlite, looked up anew for every request."""

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hypic_rag.collections.database import FILE, TENANT, CollectionDatabase
from hypic_rag.errors import BadInput, NoRoom
from hypic_rag.paths import exists

PREFIX = "hypic-"  # by which scanners for secrets, and people, know what they see
SECRET_BYTES = 32
COLUMNS = "id, tenant AS owner, label, created, revoked, expires, requests_per_minute, tokens_per_day"


@dataclass(frozen=True)
class Key:
    """tenant: None of an operator's key, which opens what is the operator's alone. created, revoked, expires: seconds
    since 1970; a key that is in force has no ``revoked``, and ``expires`` ahead or not at all. requests_per_minute,
    tokens_per_day: the most that it may use; None: any number."""

    id: str
    tenant: str | None
    label: str
    created: float
    revoked: float | None
    expires: float | None = None
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None

    def is_in_force(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True)
class DayOfUse:
    """What a key was used for on a day, counted since 1970: requests that ended well, tokens of prompts and answers."""

    key_id: str
    day: int
    requests: int
    prompt_tokens: int
    generated_tokens: int


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
        self._file: CollectionDatabase | None = None

    def add(
        self,
        tenant: str | None,
        label: str = "",
        *,
        valid_seconds: float | None = None,
        requests_per_minute: int | None = None,
        tokens_per_day: int | None = None,
    ) -> tuple[Key, str]:
        """Make a new key and its secret, which is told this once. Without a tenant it is an operator's.

        Raises BadInput for a tenant's name that cannot be one.
        """
        if tenant is not None and not re.fullmatch(TENANT, tenant):
            raise BadInput(
                f"{tenant!r} cannot name a tenant: it names a folder and a metrics label. "
                "Use up to 32 of a to z, 0 to 9 and dashes, such as acme-2"
            )
        if not label.isprintable():
            raise BadInput("the name of a key has characters that cannot be shown: use letters, digits and spaces")
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        now = time.time()
        expires = None if valid_seconds is None else now + valid_seconds
        key = Key(secrets.token_hex(4), tenant, label, now, None, expires, requests_per_minute, tokens_per_day)
        with self._database().writing() as db:
            row = (key.id, _hash(secret), tenant, label, now, expires, requests_per_minute, tokens_per_day)
            columns = "id, hash, tenant, label, created, expires, requests_per_minute, tokens_per_day"
            db.execute(f"INSERT INTO keys ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return key, secret

    def all(self) -> list[Key]:
        """List the keys, the oldest first, revoked ones too."""
        if not self.exist:
            return []
        with self._database().reading() as db:
            return [Key(*row) for row in db.execute(f"SELECT {COLUMNS} FROM keys ORDER BY created, id")]

    def revoke_all(self, tenant: str) -> int:
        """Revoke a tenant's keys, and return how many were in force."""
        if not self.exist:
            return 0
        now = time.time()
        with self._database().writing() as db:
            query = "UPDATE keys SET revoked = ? WHERE tenant = ? AND revoked IS NULL AND coalesce(expires, ?) >= ?"
            return db.execute(query, (now, tenant, now, now)).rowcount

    def revoke(self, key_id: str) -> Key:
        """Revoke a key: from the next request on it is refused. Raises BadInput where there is none with this id."""
        if not self.exist:
            raise BadInput("there are no keys: hypic-rag keys add makes one")
        with self._database().writing() as db:
            db.execute("UPDATE keys SET revoked = coalesce(revoked, ?) WHERE id = ?", (time.time(), key_id))
            row = db.execute(f"SELECT {COLUMNS} FROM keys WHERE id = ?", (key_id,)).fetchone()
        if row is None:
            raise BadInput(f"there is no key {key_id!r}: hypic-rag keys list has all, by their ids")
        return Key(*row)

    def find(self, secret: str) -> Key | None:
        """Find the key in force with this secret."""
        with self._database().reading() as db:
            row = db.execute(f"SELECT {COLUMNS} FROM keys WHERE hash = ?", (_hash(secret),)).fetchone()
        key = Key(*row) if row else None
        return key if key is not None and key.is_in_force(time.time()) else None

    def count(self, used: Iterable[tuple[str, int, int, int, int]]) -> None:
        """Add to what keys have used: key's id, day, requests, tokens of prompts, of answers."""
        with self._database().writing() as db:
            db.executemany(
                "INSERT INTO usage (key_id, day, requests, prompt_tokens, generated_tokens) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, prompt_tokens = prompt_tokens + "
                "excluded.prompt_tokens, generated_tokens = generated_tokens + excluded.generated_tokens",
                list(used),
            )

    def used(self, since: int, key_id: str | None = None) -> list[DayOfUse]:
        """List what keys, or one of them, have used from a day on, the oldest day first."""
        if not self.exist:
            return []
        query = "SELECT key_id, day, requests, prompt_tokens, generated_tokens FROM usage WHERE day >= ?"
        query += "" if key_id is None else " AND key_id = ?"
        given = (since,) if key_id is None else (since, key_id)
        with self._database().reading() as db:
            return [DayOfUse(*row) for row in db.execute(f"{query} ORDER BY day, key_id", given)]

    @property
    def exist(self) -> bool:
        """Whether there ever was one. Neither revoking the last nor losing the file under a running server opens it to
        everybody. Makes no file. Raises BadInput where that cannot be told."""
        if not self._seen and (self._file is not None or exists(self.folder / FILE)):
            with self._database().reading() as db:
                self._seen = bool(db.execute("SELECT EXISTS (SELECT 1 FROM keys) AS exist").fetchone()[0])
        return self._seen

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _database(self) -> CollectionDatabase:
        """Open the database once. Raises NoRoom, StoreDamaged."""
        with self._lock:
            if self._file is None:
                try:
                    self._file = CollectionDatabase(self.folder / FILE)
                except OSError as error:
                    raise NoRoom(f"{self.folder}: {error.strerror}", "Mend its permissions") from error
            return self._file


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
