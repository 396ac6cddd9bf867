"""A file that somebody sent, read in a process of its own: whatever it holds, only that process can suffer.

``python -m hypic_apps.server.ingestion.parse_sandbox FILE OUT LIMITS`` writes FILE's documents to OUT, a line of JSON
``{"title", "text", "metadata"}`` each, and says on stdout in one line what could not be read.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypic_rag.config import Settings, format_bytes
from hypic_rag.retrieval.readers import ReadFailure, SourceDocument, read_path, title_of_file
from hypic_rag.retrieval.readers.pages import Pages

TOLD_FAILURES = 5
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class ParseLimits:
    """seconds: of the processor, and twice as many by the clock. memory: bytes. characters: of titles, texts and
    metadata together."""

    seconds: int = 120
    memory: int = 2 * 1024**3
    characters: int = 10_000_000
    documents: int = 100_000

    @classmethod
    def of(cls, settings: Settings) -> "ParseLimits":
        return cls(settings.parse_seconds, settings.parse_memory, settings.max_characters)


class NotRead(Exception):
    """Why a file gave no documents, for whoever sent it."""


class Stopped(Exception):
    """The work on a file was ended: it is being deleted, or the server is closing."""


def parse(file: Path, out: Path, limits: ParseLimits, stopped: threading.Event) -> str | None:
    """Read ``file`` into ``out``; return what of it could not be read, or None. Raises NotRead, Stopped, OSError."""
    command = [sys.executable, "-P", "-m", "hypic_apps.server.ingestion.parse_sandbox", str(file), str(out)]
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    process = subprocess.Popen(
        [*command, json.dumps(asdict(limits))],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": path, "LANG": "C.UTF-8"}, cwd=out.parent,
    )  # fmt: skip
    too_long = NotRead(
        f"reading it takes more than the {limits.seconds} s that one file may. Split it, or save it anew"
    )
    try:
        deadline = time.monotonic() + 2 * limits.seconds
        while True:
            if stopped.is_set():
                raise Stopped
            if time.monotonic() > deadline:
                raise too_long
            try:
                said, _ = process.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        process.kill()
        process.communicate()
    if process.returncode == -signal.SIGXCPU:
        raise too_long
    try:
        answer = json.loads(said)
    except ValueError:
        raise NotRead("reading it failed: it may be damaged. Save it anew, or as a text file") from None
    if process.returncode:
        raise NotRead(answer["error"])
    return answer["error"] or None


def documents(out: Path) -> Iterator[tuple[str, str, dict[str, Any], Pages]]:
    """Yield title, text, metadata and pages of what ``parse`` wrote."""
    with out.open(encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["title"], row["text"], row["metadata"], tuple((at, label) for at, label in row["pages"])


def main() -> int:
    file, out, limits = Path(sys.argv[1]), Path(sys.argv[2]), ParseLimits(**json.loads(sys.argv[3]))
    _confine(limits)
    try:
        error = _read(file, out, limits)
    except NotRead as refused:
        print(json.dumps({"error": str(refused)}))
        return 1
    except MemoryError:
        print(json.dumps({"error": f"reading it needs more memory than {format_bytes(limits.memory)}. Split it"}))
        return 1
    except OSError as broken:
        print(json.dumps({"error": f"its text cannot be stored: {broken.strerror}"}))
        return 1
    print(json.dumps({"error": error}))
    return 0


def _confine(limits: ParseLimits) -> None:
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds + 5))
    most = 16 * limits.characters + 2**20  # of one file; a character takes up to 12 bytes of JSON
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _read(file: Path, out: Path, limits: ParseLimits) -> str:
    """Read ``file`` into ``out``; return what could not be read, or "". Raises NotRead where nothing could."""
    n_documents = n_characters = 0
    failures: list[ReadFailure] = []
    n_failures = 0
    with out.open("w", encoding="ascii") as written:
        for item in read_path(file):
            if isinstance(item, ReadFailure):
                n_failures += 1
                failures += [item] if len(failures) < TOLD_FAILURES else []
                continue
            row = _row(item)
            n_documents += 1
            n_characters += sum(map(len, (item.title, item.text, json.dumps(row["metadata"]))))
            if n_documents > limits.documents:
                raise NotRead(f"it holds more than the {limits.documents:,} documents that one file may. Split it")
            if n_characters > limits.characters:
                raise NotRead(
                    f"it holds more than the {limits.characters:,} characters of text that one file may. Split it"
                )
            written.write(json.dumps(row) + "\n")
    told = "; ".join(failure.reason if failure.line is None else f"line {failure.line}: {failure.reason}"
                     for failure in failures)  # fmt: skip
    if n_failures > len(failures):
        told += f"; and {n_failures - len(failures)} more"
    if not n_documents:
        raise NotRead(told or "it holds no text")
    return told


def _row(document: SourceDocument) -> dict[str, Any]:
    """Make a row of a document; a title that only repeats the file's name here is none."""
    metadata = {key: value for key, value in document.metadata.items() if key != "path"}
    own = title_of_file(Path(document.metadata["path"]).name, str(metadata.get("format")))
    title = "" if document.title == own else document.title
    return {"title": title, "text": document.text, "metadata": metadata, "pages": document.pages}


if __name__ == "__main__":
    sys.exit(main())
