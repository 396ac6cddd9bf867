"""Files that are there whole or not at all: written beside their place, synced, then given their name."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which takes the place of ``path`` at the end of the block, and survives a power cut then.

    Where the block or the disk fails ``path`` stays as it was, and nothing is left beside it. Raises OSError.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        clear_away(unfinished)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        sync_folder(path.parent)


def clear_away(path: Path) -> None:
    """Remove a file if that can be: where a disk would not take it, it may not let go of it either, and to say so
    would hide why."""
    with contextlib.suppress(OSError):
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Make names just put into a folder survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
