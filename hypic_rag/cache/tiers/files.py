"""Entry files of a cache folder: where they lie, how they are written whole and read with every check."""

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hypic_rag.atomic_write import clear_away, sync_folder
from hypic_rag.cache.header import EntryRefused
from hypic_rag.cache.key import Identity, difference
from hypic_rag.cache.record import checksum_of
from hypic_rag.cache.tiers.index import Row
from hypic_rag.paths import GONE

# these say that this process or machine has run short, not that a file is bad
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
UNFINISHED_SECONDS = 3600.0  # an unfinished file older than this is left over even if its writer's id lives


def entry_path(folder: Path, digest: str) -> Path:
    return folder / digest[:2] / f"{digest}.safetensors"


def read_checked(folder: Path, row: Row, asked: Identity) -> memoryview:
    """Read the file of a row into memory that can be written. Raises EntryRefused if it is not what was stored, or
    cannot be looked at ("unreadable"), OSError if files cannot be opened for want of handles or memory."""
    found = difference(row, asked, where="the index row")
    if found is not None:
        raise EntryRefused(*found)
    path = entry_path(folder, row.digest)
    try:
        data = contents_of(path)
    except GONE:
        raise EntryRefused("missing", f"file {path.name} is gone") from None
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise EntryRefused("unreadable", str(error)) from error
    if len(data) != row.nbytes:
        reason = "truncated" if len(data) < row.nbytes else "damaged"
        raise EntryRefused(reason, f"file {path.name} has {len(data)} bytes, stored were {row.nbytes}")
    checksum = checksum_of(data)
    if checksum != row.checksum:
        raise EntryRefused("damaged", f"file {path.name} has CRC-32 {checksum}, stored was {row.checksum}")
    return data


def contents_of(path: Path) -> memoryview:
    """Read a file into memory that can be written. Raises OSError."""
    with open(path, "rb") as file:
        data = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
        return data[: file.readinto(data)]


def write_unfinished(folder: Path, digest: str, pieces: Iterable[memoryview]) -> Path:
    """Write the pieces one behind the other, synced, to a file beside its final place whose name
    tells its writer. Raises OSError."""
    place = entry_path(folder, digest).parent
    if not place.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        sync_folder(folder)
    path = place / f"{digest}.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        clear_away(path)
        raise
    return path


def finish(unfinished: Path, path: Path) -> None:
    """Give a written file its final name, for good."""
    os.replace(unfinished, path)
    sync_folder(path.parent)


def all_files(folder: Path) -> Iterator[Path]:
    """Yield entry files and unfinished ones; whatever else lies in the folder is none of ours."""
    for path in folder.glob("[0-9a-f][0-9a-f]/*"):
        if path.suffix in (".safetensors", ".tmp"):
            yield path


def is_unfinished(path: Path) -> bool:
    return path.suffix == ".tmp"


def is_left_over(path: Path) -> bool:
    """Return whether the writer of an unfinished file DIGEST.PID.THREAD.tmp is no longer at it."""
    try:
        if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
            return True
        os.kill(int(path.name.split(".")[1]), 0)
    except FileNotFoundError:
        return False
    except (ProcessLookupError, ValueError, OverflowError):
        return True
    except PermissionError:  # alive, of another user
        pass
    return False
