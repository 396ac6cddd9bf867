"""Who writes to a server's folder: one process at a time, a server or an ingestion. Any number may read."""

import fcntl
from pathlib import Path
from typing import IO, Literal

from hypic_rag.errors import BadInput

Holder = Literal["serve", "ingest"]
LOCK = "server.lock"
ADVICE = {  # who wants it, who has it
    ("serve", "serve"): "another hypic-rag serve uses {folder}: end it, or give this one a HYPIC_HOME of its own",
    ("serve", "ingest"): "hypic-rag ingest writes to {folder}: serve again when it has ended",
    ("ingest", "serve"): (
        "hypic-rag serve uses {folder}: end it, or upload through it: POST /v1/collections/NAME/files "
        "(curl -F file=@FILE)"
    ),
    ("ingest", "ingest"): "another hypic-rag ingest writes to {folder}: try again when it has ended",
}


def private_folder(folder: Path) -> None:
    """Make the folder, for its owner's eyes only: it has documents, and segments that give them away.

    Raises BadInput where it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, error) from error


def claimed(folder: Path, by: Holder) -> IO[str]:
    """Return a lock on a server's folder, held until it is closed, also by kill -9. Raises BadInput where another
    process has it, or the folder cannot be written."""
    try:
        lock = (folder / LOCK).open("a+")
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(by)
        lock.flush()
    except BlockingIOError as error:
        lock.seek(0)
        has: Holder = "ingest" if lock.read() == "ingest" else "serve"  # an older version's server writes nothing
        lock.close()
        raise BadInput(ADVICE[by, has].format(folder=folder)) from error
    except OSError as error:
        lock.close()
        raise _unusable(folder, error) from error
    return lock


def _unusable(folder: Path, error: OSError) -> BadInput:
    return BadInput(f"{folder} cannot be used: {error.strerror}. Set HYPIC_HOME to a folder that this user can write")
