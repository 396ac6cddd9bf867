"""What a path leads to: nothing, something, or what cannot be looked at, which is never taken for nothing."""

import os
from pathlib import Path

from hypic_rag.errors import BadInput

# ENOENT and ENOTDIR alone say that there is nothing. A missing permission, a dead mount, too many links, too long a
# name or no free handle say nothing of what is there; Path.exists() answers False for some of them, for which ones
# depends on the version of Python.
GONE = (FileNotFoundError, NotADirectoryError)


def exists(path: Path) -> bool:
    """Return whether a path exists. Raises BadInput where that cannot be told."""
    try:
        os.stat(path)
    except GONE:
        return False
    except (OSError, ValueError) as error:
        raise BadInput(f"{path_text(path)} cannot be looked at: {reason(error)}. {REMEDY}") from error
    return True


def absolute(path: str | os.PathLike[str]) -> Path:
    """Put ``~`` in and take ``..`` out; links stay. Raises BadInput where there is no home or working folder."""
    try:
        return Path(os.path.abspath(Path(path).expanduser()))
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{path_text(path)!r} leads nowhere: {reason(error)}. Give an absolute path") from error


def utf8(path: Path) -> Path:
    """Return the path. Raises BadInput where it is not UTF-8: the libraries that read
    weights could not open them there."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"the name {path_text(path)} is not UTF-8, so no model can be read there. Rename it") from error
    return path


def path_text(path: str | os.PathLike[str]) -> str:
    """Write the path as valid Unicode; a name that is not UTF-8 keeps its odd bytes as ``\\xNN``."""
    text = os.fspath(path)
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return text.encode("utf-8", "backslashreplace").decode()


def reason(error: Exception) -> str:
    """Say what an error says without the number and the path that str(error) of an OSError has."""
    return ((isinstance(error, OSError) and error.strerror) or str(error)).rstrip(".")


REMEDY = "Check the path, its permissions, and whether its disk is mounted"
