"""What decides a model's entries: a digest of its files, computed once and remembered by path, size and time."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from hypic_rag.config import home

WEIGHTS = ("*.safetensors", "*.bin", "config.json")
TOKENIZER = (
    "tokenizer*.json",
    "*.model",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
)


def fingerprint(folder: Path, patterns: Iterable[str]) -> str:
    """sha256 over names and contents of the folder's files that match."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    known = _Known()
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name}\0{known.digest(file)}\n".encode())
    known.save()
    return total.hexdigest()


class _Known:
    """HOME/fingerprints.json. Losing it costs hashing again, so trouble with the file is no error."""

    def __init__(self) -> None:
        self.path = home() / "fingerprints.json"
        self.changed = False
        try:
            self.digests: dict[str, str] = dict(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            self.digests = {}

    def digest(self, file: Path) -> str:
        # The time a file was renamed into place is not seen by its mtime; its inode changes then.
        stat = file.stat()
        place = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
        if place not in self.digests:
            with file.open("rb") as handle:
                self.digests[place] = hashlib.file_digest(handle, "sha256").hexdigest()
            self.changed = True
        return self.digests[place]

    def save(self) -> None:
        if not self.changed:
            return
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(self.digests, indent=1, sort_keys=True), encoding="utf-8")
            os.replace(unfinished, self.path)
        except OSError:
            unfinished.unlink(missing_ok=True)
