"""Which files there are to read under the paths that a user names, in a stable order."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.readers.document import ReadFailure, path_text

SUFFIXES = (".txt", ".md", ".html", ".htm", ".pdf", ".jsonl")


def find_files(paths: Iterable[Path]) -> list[Path | ReadFailure]:
    """Files to read, as absolute paths, and notes about those that are not; folders by name order.

    A file that is reached twice is given once. Linked folders are followed, unless they lead back.
    Raises BadInput if a path does not exist or a folder holds nothing to read.
    """
    found: list[Path | ReadFailure] = []
    for path in paths:
        here = _absolute(path)
        inside = list(_walk(here) if here.is_dir() else _named_file(here))
        if here.is_dir() and not any(isinstance(item, Path) for item in inside):
            raise BadInput(_nothing_in(here, inside))
        found += inside
    return list(_each_once(found))


def _absolute(path: Path) -> Path:
    try:
        here = Path(os.path.abspath(path.expanduser()))
        here.stat()
        return here
    except FileNotFoundError:
        raise BadInput(f"there is no file or folder {path_text(path)!r}. Check the path.") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{path_text(path)!r} cannot be opened: {error}. Check the path.") from error


def _named_file(path: Path) -> Iterator[Path | ReadFailure]:
    if not path.is_file():
        yield ReadFailure(path_text(path), "is neither a regular file nor a folder")
    elif path.suffix.lower() not in SUFFIXES:
        yield ReadFailure(path_text(path), f"cannot read {_kind(path)}. Supported: {', '.join(SUFFIXES)}")
    else:
        yield path


def _walk(root: Path) -> Iterator[Path | ReadFailure]:
    waiting, links = [root], list[Path]()  # linked folders come last, so that a file's own path comes first
    seen: set[str] = set()
    while waiting or links:
        in_links = not waiting
        path = links.pop(0) if in_links else waiting.pop()
        try:
            mode = path.stat().st_mode
            if path != root and path.name.startswith("."):
                yield _skip(path, "is hidden")
            elif stat.S_ISDIR(mode) and path.is_symlink() and path != root and not in_links:
                links.append(path)
            elif stat.S_ISDIR(mode):
                real = os.path.realpath(path)
                if real in seen or (path != root and Path(os.path.realpath(root)).is_relative_to(real)):
                    yield _skip(path, "is a link to a folder that is read already, or to one above")
                    continue
                seen.add(real)
                waiting += [path / name for name in sorted(os.listdir(path), reverse=True)]
            elif not stat.S_ISREG(mode):
                yield _skip(path, "is not a regular file")
            elif path.suffix.lower() not in SUFFIXES:
                yield _skip(path, f"{_kind(path)} is not read")
            else:
                yield path
        except OSError as error:
            if path.is_symlink():
                yield _skip(path, f"is a link that leads nowhere: {error.strerror}")
            else:
                yield ReadFailure(path_text(path), f"cannot be opened: {error.strerror}")


def _each_once(found: list[Path | ReadFailure]) -> Iterator[Path | ReadFailure]:
    seen: dict[str, Path] = {}
    for item in found:
        if isinstance(item, ReadFailure):
            yield item
            continue
        first = seen.setdefault(os.path.realpath(item), item)
        if first is item:
            yield item
        elif first != item:
            yield _skip(item, f"is the same file as {path_text(first)}")


def _skip(path: Path, reason: str) -> ReadFailure:
    return ReadFailure(path_text(path), reason, skipped=True)


def _kind(path: Path) -> str:
    return f"the kind {path.suffix}" if path.suffix else "a file without a suffix"


def _nothing_in(folder: Path, inside: list[Path | ReadFailure]) -> str:
    others = [str(item) for item in inside[:3]]
    passed_over = f" ({len(inside)} passed over: {'; '.join(others)})" if others else ""
    return (
        f"folder {path_text(folder)} holds nothing to read{passed_over}. "
        f"Put files there of the kinds {', '.join(SUFFIXES)}."
    )
