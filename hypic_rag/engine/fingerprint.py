"""What decides a model's entries: a digest of its files, computed once and remembered while they stay as they are."""

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from hypic_rag.atomic_write import replacing
from hypic_rag.config import home

WEIGHTS = ("*.safetensors", "*.bin", "config.json")
TOKENIZER = (
    "tokenizer*.json",
    "*.model",
    "vocab.*",
    "*vocab*.txt",
    "*.tiktoken",
    "tekken.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
)
SETTLED_NS = 3 * 10**9  # a file system's clock may tick as seldom as every two seconds

State = tuple[int, ...]


def fingerprint(folder: Path, patterns: Iterable[str]) -> str:
    """Hash (sha256) names and contents of the folder's files that match."""
    known = _Known()
    total = hashlib.sha256()
    for file in _matching(folder, patterns):
        total.update(f"{file.name}\0{known.digest(file)}\n".encode())
    if index := _choosing_index(folder, patterns):
        total.update(f"{index.name}\0{known.digest(index)}\n".encode())
    known.save()
    return total.hexdigest()


def states(folder: Path, patterns: Iterable[str]) -> dict[str, State]:
    """Read the files' states: equal before and after something only where none was
    written, moved or replaced meanwhile."""
    return {file.name: _state(file.stat()) for file in _matching(folder, patterns)}


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})


def _choosing_index(folder: Path, patterns: Iterable[str]) -> Path | None:
    """Return the index of a sharded checkpoint, where it decides which of the folder's files are loaded: without the
    whole model in one file, and with weights here that it does not name. Else the weights alone decide."""
    index = folder / "model.safetensors.index.json"
    if "*.safetensors" not in patterns or (folder / "model.safetensors").is_file() or not index.is_file():
        return None
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return index
    return None if named == {file.name for file in _matching(folder, ["*.safetensors"])} else index


def _state(stat: os.stat_result) -> State:
    """Return what only an unchanged file keeps. Its size and the time of its contents can be kept or set by anybody (cp
    -p, tar, container layers); st_ctime, when anything about it was changed last, by nobody."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


class _Known:
    """HOME/fingerprints.json: path -> state and digest. Losing it costs hashing again, so trouble with the file is no
    error."""

    def __init__(self) -> None:
        self.changed = False
        self.path: Path | None = None
        self.files: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError, RuntimeError):  # RuntimeError: there is no home
            self.path = home() / "fingerprints.json"
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.files = found if isinstance(found, dict) else {}

    def digest(self, file: Path) -> str:
        place, state, began = str(file.resolve()), _state(file.stat()), time.time_ns()
        match self.files.get(place):
            case {"state": list(known), "sha256": str(digest), "seal": str(seal)}:
                if tuple(known) == state and seal == _seal(place, state, digest):
                    return digest
        with file.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        # A file that was written just now can be written again within the same tick of the clock.
        if _state(file.stat()) == state and state[2] < began - SETTLED_NS:
            self.files[place] = {"state": state, "sha256": digest, "seal": _seal(place, state, digest)}
            self.changed = True
        return digest

    def save(self) -> None:
        if not self.changed or self.path is None:
            return
        with contextlib.suppress(OSError):  # of a read-only file system, say
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps(self.files, indent=1, sort_keys=True).encode())


def _seal(place: str, state: State, digest: str) -> str:
    """Return a checksum of what is remembered: a flipped bit in it would be another model, whose stores are refused."""
    return f"{zlib.crc32(repr((place, state, digest)).encode('utf-8', 'surrogateescape')):08x}"
