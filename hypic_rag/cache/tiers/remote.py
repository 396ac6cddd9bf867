"""The remote tier: stored files at any address that fsspec knows, shared by machines, never waited for long.

ADDRESS/ab/DIGEST.safetensors is the file as on disk, ADDRESS/ab/DIGEST.json its record, which is written last and
removed first: what has no record is not there. An archive (``archive.py``), unpacked, is such a place.
"""

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from hypic_rag.cache.archive import check, file_name, record_name
from hypic_rag.cache.entry import Entry, pack, unpack
from hypic_rag.cache.header import EntryRefused
from hypic_rag.cache.key import SegmentKey, difference
from hypic_rag.cache.record import Record
from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.circuit_breaker import CircuitBreaker
from hypic_rag.errors import BadInput
from hypic_rag.stored_json import parse

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 3.0  # of one look-up
SLOW_WRITE_SECONDS = 60.0  # one that takes longer is told as a trouble
QUEUED_BYTES = 512 * 2**20
CLOSE_SECONDS = 10.0  # for what is queued at the end

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class _Put:
    key: SegmentKey
    entry: Entry


@dataclass(frozen=True)
class _Delete:
    digest: str


@dataclass(frozen=True)
class _DeleteNamespace:
    namespace: str


Job = _Put | _Delete | _DeleteNamespace


class RemoteTier:
    """``address``: s3://bucket/folder, file:///mnt/shared, memory://name, ... Safe for threads and machines.

    Writes and deletes are queued and done by one thread. A look-up takes at most ``timeout`` seconds; after one that
    failed the remote is left alone for ``health.REST_SECONDS``, so that it costs a request one timeout at most.
    Raises BadInput where fsspec does not know such an address; no method raises for what happens there.
    """

    def __init__(self, address: str, timeout: float = TIMEOUT_SECONDS, queued_bytes: int = QUEUED_BYTES):
        self.address, self.timeout, self.queued_bytes = address, timeout, queued_bytes
        try:
            self._fs, root = url_to_fs(address)
        except (ValueError, ImportError, OSError) as error:
            raise BadInput(
                f"the remote {address!r} cannot be used: {error}. Write it like s3://bucket/folder or "
                "file:///mnt/shared; for s3:// install s3fs, for gs:// gcsfs"
            ) from error
        self._root = root.rstrip("/")
        self.n_stored = self.bytes_stored = self.n_dropped = 0
        """Of this process; dropped are those that found the queue full, or whose write failed."""
        self._health = CircuitBreaker(log, rest_after=0.0)
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._doing: Job | None = None
        self._since = 0.0
        self._is_closed = False
        self._worker: threading.Thread | None = None

    @property
    def trouble(self) -> str:
        """What did not work when it was tried last; empty where all did."""
        with self._changed:
            seconds = time.monotonic() - self._since if self._doing is not None else 0.0
        hangs = f"a write to {self.address} takes since {seconds:.0f} s" if seconds > SLOW_WRITE_SECONDS else ""
        return "; ".join(filter(None, (self._health.trouble, hangs)))

    def get(self, key: SegmentKey) -> tuple[Record, memoryview, Entry] | Miss:
        """Fetch the file with its record, checked, and the entry in it. What proves bad is removed there."""
        if self._is_leaving(key):
            return Miss("deleted")

        def fetch() -> tuple[Record, memoryview, Entry]:
            record = self._record(key.digest)
            found = difference(record, key, where="the record")
            if found is not None:
                raise EntryRefused(*found)
            data = self._fs.cat_file(self._path(file_name(key.digest)))
            return check(data, record), memoryview(data), unpack(data, key)

        try:
            return self._within(fetch)
        except FileNotFoundError:
            return Miss("never_seen")
        except EntryRefused as bad:
            self.discard(key.digest)
            return Miss(bad.reason, bad.detail)
        except _NotNow as error:
            return Miss("unreadable", str(error))

    def contains(self, key: SegmentKey) -> bool:
        """Return whether there is a record; the file is not looked at."""
        if self._is_leaving(key):
            return False
        try:
            return difference(self._within(lambda: self._record(key.digest)), key, where="the record") is None
        except (FileNotFoundError, EntryRefused, _NotNow):
            return False

    def put(self, key: SegmentKey, entry: Entry) -> bool:
        """Queue an entry that is on the CPU. False where the queue is full, and it is not stored there."""
        with self._changed:
            waiting = sum(job.entry.nbytes for job in self._jobs if isinstance(job, _Put))
            if self._is_closed or waiting + entry.nbytes > self.queued_bytes:
                self.n_dropped += 1
                return False
        self._queue(_Put(key, entry))
        return True

    def discard(self, digest: str) -> None:
        """Queue its removal; it is not found from now on."""
        self._drop_puts(lambda key: key.digest == digest)
        self._queue(_Delete(digest))

    def discard_namespace(self, namespace: str) -> None:
        """Queue the removal of all entries there whose keys have it, which reads every record."""
        self._drop_puts(lambda key: key.namespace == namespace)
        self._queue(_DeleteNamespace(namespace))

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until nothing is queued, at most so long. Whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and self._doing is None, seconds)

    def close(self) -> None:
        """Wait for what is queued, at most CLOSE_SECONDS, and not at all where the remote fails."""
        with self._changed:
            if self._worker is None:
                self._is_closed = True
                return
        is_done = self.flush(0.0 if self._health.trouble else CLOSE_SECONDS)
        with self._changed:
            self._is_closed = True
            if not is_done:
                log.warning("%d changes have not reached the remote %s", len(self._jobs) + 1, self.address)
            self._changed.notify_all()

    def _is_leaving(self, key: SegmentKey) -> bool:
        with self._changed:
            jobs = (*self._jobs, self._doing)
        return _Delete(key.digest) in jobs or _DeleteNamespace(key.namespace) in jobs

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _record(self, digest: str) -> Record:
        """Read a record. Raises FileNotFoundError, EntryRefused."""
        name = self._path(record_name(digest))
        text = self._fs.cat_file(name)
        if not text:  # being written, where that is not done at once
            raise FileNotFoundError(name)
        try:
            return Record.from_fields(parse(text))
        except ValueError as error:
            raise EntryRefused("damaged", str(error)) from error

    def _within(self, call: Callable[[], Answer]) -> Answer:
        """Call in a thread of its own, which is left behind where it takes too long. Raises what ``call`` does of
        FileNotFoundError and EntryRefused, and _NotNow for all else."""
        if self._health.rests("read"):
            raise _NotNow(self._health.of("read"))
        done = threading.Event()
        answer: list[Answer] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answer.append(call())
            except Exception as error:  # what an implementation of fsspec raises is its own matter
                errors.append(error)
            done.set()

        threading.Thread(target=run, name="hypic-remote-read", daemon=True).start()
        error: Exception
        if not done.wait(self.timeout):
            error = TimeoutError(f"no answer in {self.timeout:g} s")
        elif answer or isinstance(errors[0], FileNotFoundError | EntryRefused):
            self._health.worked("read")
            if answer:
                return answer[0]
            raise errors[0]
        else:
            error = errors[0]
        message = f"the remote {self.address} cannot be read: {type(error).__name__}: {error}"
        self._health.failed("read", message)
        raise _NotNow(message)

    def _drop_puts(self, of: Callable[[SegmentKey], bool]) -> None:
        with self._changed:
            self._jobs = deque(job for job in self._jobs if not (isinstance(job, _Put) and of(job.key)))

    def _queue(self, job: Job) -> None:
        with self._changed:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="hypic-remote-write", daemon=True)
                self._worker.start()
            self._jobs.append(job)
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(job)
                self._health.worked("write")
            except Exception as error:  # as above
                message = f"the remote {self.address} cannot be written: {type(error).__name__}: {error}"
                self._health.failed("write", message)
                with self._changed:
                    if isinstance(job, _Put):
                        self.n_dropped += 1
                    else:  # what was deleted must not come back
                        self._jobs.appendleft(job)
            with self._changed:
                self._doing = None
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """Return the next job, once there is one and the remote is not left alone; None at the end."""
        with self._changed:
            while not self._is_closed:
                if self._jobs and not self._health.rests("write"):
                    self._doing, self._since = self._jobs.popleft(), time.monotonic()
                    return self._doing
                self._changed.wait(1.0 if self._jobs else None)
        return None

    def _do(self, job: Job) -> None:
        if isinstance(job, _Put):
            self._put(job)
        elif isinstance(job, _Delete):
            self._delete(job.digest)
        else:
            for path in self._records():
                with contextlib.suppress(FileNotFoundError, EntryRefused):
                    record = self._record(path.rpartition("/")[2].removesuffix(".json"))
                    if record.key["namespace"] == job.namespace:
                        self._delete(record.digest)

    def _put(self, job: _Put) -> None:
        """Store an entry and its record, unless there is one: the first copy stays."""
        digest = job.key.digest
        name = self._path(record_name(digest))
        if self._fs.exists(name):
            return
        pieces = pack(job.entry, job.key)
        record = Record.of(job.key, pieces)
        self._fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._path(file_name(digest)), b"".join(pieces))
        self._fs.pipe_file(name, json.dumps(record.fields()).encode())
        self.n_stored += 1
        self.bytes_stored += record.nbytes

    def _delete(self, digest: str) -> None:
        for name in (record_name(digest), file_name(digest)):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _records(self) -> list[str]:
        found: list[Any] = self._fs.find(self._root)
        return [path for path in found if path.endswith(".json")]


class _NotNow(Exception):
    """The remote failed, or is left alone since it did."""
