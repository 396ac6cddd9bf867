"""Files out of a multipart body, straight to the disk: never a whole one in memory, never a name that leads away."""

import asyncio
import contextlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hypic_apps.server.errors import ApiError
from hypic_rag.atomic_write import clear_away, replacing, sync_folder
from hypic_rag.collections.rows import shown_name
from hypic_rag.config import format_bytes
from hypic_rag.errors import NoRoom
from hypic_rag.retrieval.readers import KINDS, SUFFIXES
from hypic_rag.retrieval.segments import SPARE_DISK

MOST_FILES = 100  # a request
MOST_HEADER = 8 * 1024  # bytes of a part's headers
CHECK_EVERY = 16 * 2**20  # bytes written between looks at the free space
UNFINISHED = ".part"


@dataclass(frozen=True)
class Upload:
    """A file that is on the disk, whole. filename: a label; ``path`` does not come from it."""

    id: str
    filename: str
    nbytes: int
    path: Path


async def receive(body: AsyncIterator[bytes], content_type: str, folder: Path, max_bytes: int) -> list[Upload]:
    """Store every part ``file`` of a body in ``folder``, synced: all of them, or none.

    Raises ApiError: 400 for a body that is no multipart form, 413 for a file larger than ``max_bytes``, 415 for a kind
    that is not read; NoRoom.
    """
    receiver = _Receiver(_boundary(content_type), folder, max_bytes)
    try:
        async for chunk in body:
            await asyncio.to_thread(receiver.take, chunk)
        return await asyncio.to_thread(receiver.finish)
    except BaseException as error:
        receiver.undo()
        if isinstance(error, (ApiError, NoRoom)):
            await _drain(body, max_bytes)
        if isinstance(error, OSError):
            raise NoRoom(f"uploads: {error.strerror or error}") from error
        raise


def written(folder: Path, filename: str, text: str) -> Upload:
    """Store a text as a file in ``folder``, synced; of a name without a known kind as plain text. Raises NoRoom."""
    shown = label(filename) or "text.txt"
    if Path(shown).suffix.lower() not in SUFFIXES:
        shown = f"{shown}.txt"
    file_id, content = f"file-{uuid.uuid4().hex}", text.encode("utf-8", "replace")
    path = folder / f"{file_id}{Path(shown).suffix.lower()}"
    try:
        if shutil.disk_usage(folder).free < SPARE_DISK:
            raise NoRoom("its disk is nearly full")
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise NoRoom(f"uploads: {error.strerror or error}") from error
    return Upload(file_id, shown, len(content), path)


def label(filename: str) -> str:
    """Return what is shown of a name that a client sent: its last part, without control and direction characters."""
    return shown_name(re.split(r"[/\\]", filename)[-1])


async def _drain(body: AsyncIterator[bytes], most: int) -> None:
    """Read on, at most ``most`` bytes: a client that sends before it reads would see a
    broken connection, not the answer."""
    with contextlib.suppress(Exception):
        async for chunk in body:
            most -= len(chunk)
            if most < 0:
                return


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise ApiError(415, "send files as multipart/form-data, e.g. curl -F file=@report.pdf")
    return options[b"boundary"]


class _Receiver:
    def __init__(self, boundary: bytes, folder: Path, max_bytes: int):
        self.folder, self.max_bytes = folder, max_bytes
        self.uploads: list[Upload] = []
        self._file: BinaryIO | None = None  # of the part that is being received
        self._lock = threading.Lock()
        self._ended = self._undone = False
        self._n_headers = self._n_bytes = self._unchecked = 0
        self._header = self._value = self._disposition = b""
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._open,
                    "on_part_data": self._write,
                    "on_part_end": self._close,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed(error) from error

    def take(self, chunk: bytes) -> None:
        try:
            with self._lock:
                if not self._undone:
                    self._parser.write(chunk)
        except FormParserError as error:
            raise _malformed(error) from error

    def finish(self) -> list[Upload]:
        if not self._ended:
            raise _malformed("it ends too early")
        if not self.uploads:
            raise ApiError(400, 'there is no file in the request: send parts named "file"', param="file")
        sync_folder(self.folder)
        return self.uploads

    def undo(self) -> None:
        """Remove what was received, also while a thread is still taking a chunk, where the request was cancelled."""
        with self._lock:
            self._undone = True
            if self._file is not None:
                clear_away(Path(self._file.name))
                with contextlib.suppress(OSError):  # what it had buffered does not fit either
                    self._file.close()
            for upload in self.uploads:
                clear_away(upload.path)

    def _begin(self) -> None:
        self._n_headers = 0
        self._header = self._value = self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += self._counted(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, data: bytes) -> bytes:
        self._n_headers += len(data)
        if self._n_headers > MOST_HEADER:
            raise ApiError(400, "a part's headers are too long: shorten the file's name", param="file")
        return data

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"filename" not in options:
            return  # another field of the form
        if options.get(b"name") != b"file":
            raise ApiError(400, 'send files in parts named "file"', param="file")
        if len(self.uploads) >= MOST_FILES:
            raise ApiError(400, f"send at most {MOST_FILES} files at once", param="file")
        self._filename = label(options[b"filename"].decode("utf-8", "replace"))
        self._suffix = Path(self._filename).suffix.lower()
        if self._suffix not in SUFFIXES:
            raise ApiError(415, f"{self._filename!r} is of no kind that can be read: {KINDS}", param="file")
        self._id = f"file-{uuid.uuid4().hex}"
        self._n_bytes = 0
        self._file = (self.folder / f"{self._id}{UNFINISHED}").open("xb")

    def _write(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            return
        self._n_bytes += end - start
        if self._n_bytes > self.max_bytes:
            most = format_bytes(self.max_bytes)
            raise ApiError(
                413, f"{self._filename!r} is larger than {most}, the most that one file may be", param="file"
            )
        self._unchecked -= end - start
        if self._unchecked < 0:
            self._unchecked = CHECK_EVERY
            if shutil.disk_usage(self.folder).free < SPARE_DISK:
                raise NoRoom("its disk is nearly full")
        self._file.write(data[start:end])

    def _close(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self.folder / f"{self._id}{self._suffix}"
        Path(self._file.name).rename(path)
        self._file = None
        self.uploads.append(Upload(self._id, self._filename, self._n_bytes, path))

    def _end(self) -> None:
        self._ended = True


def _malformed(why: object) -> ApiError:
    return ApiError(400, f"the body is no multipart form: {why}")
