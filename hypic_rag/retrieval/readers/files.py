"""Which files there are to read under the paths that a user names, in a stable order."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hypic_rag.errors import BadInput
from hypic_rag.paths import GONE, absolute, path_text, reason
from hypic_rag.retrieval.readers.document import ReadFailure

TEXT_SUFFIXES = (
    ".txt",
    ".md",
    ".html",
    ".htm",
    ".pdf",
    ".docx",
    ".pptx",
    ".xlsx",
    ".epub",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
)
CODE_SUFFIXES = (
    *(".py", ".js", ".mjs", ".ts", ".jsx", ".tsx", ".java", ".kt", ".scala", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu"),
    *(".cs", ".go", ".rs", ".swift", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh", ".sql", ".css", ".tex", ".rst"),
    *(".toml", ".yaml", ".yml", ".ini", ".log"),
)
SUFFIXES = (*TEXT_SUFFIXES, *CODE_SUFFIXES)
KINDS = f"{', '.join(TEXT_SUFFIXES)}, and source code ({', '.join(CODE_SUFFIXES)})"
Known = Callable[[str], bool]


def find_files(paths: Iterable[Path], known: Known = lambda path: False) -> list[Path | ReadFailure]:
    """Find the files to read, as absolute paths, and note those that are not; folders by name order.

    A file that is reached twice is given once. Linked folders are followed, unless they lead back.
    known: whether there were documents at a path or below it; then nothing there, or what cannot be looked at, is
    no misspelt path.
    Raises BadInput if a path that is not known does not exist, cannot be looked at, or holds nothing to read.
    """
    found: list[Path | ReadFailure] = []
    for path in paths:
        found += _inside(absolute(path), known)
    return list(_each_once(found))


def _inside(here: Path, known: Known) -> list[Path | ReadFailure]:
    name = path_text(here)
    try:
        mode = os.stat(here).st_mode
    except GONE:
        if known(name):
            return []
        raise BadInput(f"there is no file or folder {name!r}. Check the path.") from None
    except (OSError, ValueError) as error:
        if known(name):
            return [ReadFailure(name, f"cannot be opened: {reason(error)}")]
        raise BadInput(f"{name!r} cannot be opened: {reason(error)}. Check the path.") from error
    if not stat.S_ISDIR(mode):
        return list(_named_file(here, mode))
    inside = list(_walk(here))
    if not any(isinstance(item, Path) for item in inside) and not known(name):
        raise BadInput(_nothing_in(here, inside))
    return inside


def _named_file(path: Path, mode: int) -> Iterator[Path | ReadFailure]:
    if not stat.S_ISREG(mode):
        yield ReadFailure(path_text(path), "is neither a regular file nor a folder")
    elif path.suffix.lower() not in SUFFIXES:
        yield ReadFailure(path_text(path), f"cannot read {_kind(path)}. Supported: {KINDS}")
    else:
        yield path


def _walk(root: Path) -> Iterator[Path | ReadFailure]:
    waiting, links = [root], list[Path]()  # linked folders come last, so that a file's own path comes first
    seen: dict[str, Path] = {}
    while waiting or links:
        in_links = not waiting
        path = links.pop(0) if in_links else waiting.pop()
        if path != root and path.name.startswith("."):
            yield ReadFailure(path_text(path), "is hidden", skipped=True, is_hidden=True)
            continue
        try:
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode) and path.is_symlink() and path != root and not in_links:
                links.append(path)
            elif stat.S_ISDIR(mode):
                real = os.path.realpath(path)
                if real in seen or (path != root and Path(os.path.realpath(root)).is_relative_to(real)):
                    what = "is a link to a folder that is read already, or to one above"
                    yield _skip(path, what, same_as=seen.get(real, root))
                    continue
                seen[real] = path
                waiting += [path / name for name in sorted(os.listdir(path), reverse=True)]
            elif not stat.S_ISREG(mode):
                yield _skip(path, "is not a regular file")
            elif path.suffix.lower() not in SUFFIXES:
                yield _skip(path, f"{_kind(path)} is not read")
            else:
                yield path
        except GONE as error:
            what = "is a link that leads nowhere" if os.path.islink(path) else "has gone since its folder was listed"
            yield _skip(path, f"{what}: {reason(error)}")
        except OSError as error:
            yield ReadFailure(path_text(path), f"cannot be opened: {reason(error)}")


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
            yield _skip(item, f"is the same file as {path_text(first)}", same_as=first)


def _skip(path: Path, reason: str, same_as: Path | None = None) -> ReadFailure:
    return ReadFailure(path_text(path), reason, skipped=True, same_as="" if same_as is None else path_text(same_as))


def _kind(path: Path) -> str:
    return f"the kind {path.suffix}" if path.suffix else "a file without a suffix"


def _nothing_in(folder: Path, inside: list[Path | ReadFailure]) -> str:
    others = [str(item) for item in inside[:3]]
    passed_over = f" ({len(inside)} passed over: {'; '.join(others)})" if others else ""
    return f"folder {path_text(folder)} holds nothing to read{passed_over}. Put files there of the kinds {KINDS}."
