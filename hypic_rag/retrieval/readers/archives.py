"""Zip archives that are documents: Office's files and books, checked before anything of them is unpacked."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from hypic_rag.config import format_bytes

MOST_ENTRIES = 20_000
MOST_UNPACKED = 1000**3  # bytes of all entries, most of them pictures
MOST_MARKUP = 200 * 1000**2  # bytes of those that are read: as a tree they take ten times as many
MARKUP = frozenset({".xml", ".rels", ".opf", ".ncx", ".xhtml", ".html", ".htm"})
OLDER_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")
TITLE = "{http://purl.org/dc/elements/1.1/}title"


class BadArchive(Exception):
    """Why an archive is not read, in words."""


@contextlib.contextmanager
def opened_archive(path: Path, kind: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive whose sizes are bearable. zipfile holds every entry to the size that is declared here.

    Raises BadArchive, OSError.
    """
    with path.open("rb") as file:
        if file.read(len(OLDER_OFFICE)) == OLDER_OFFICE:
            raise BadArchive(
                f"needs a password, or is of an older format than its name says. Save it as {kind}, unlocked"
            )
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BadArchive(f"is not a readable {kind}: {error}") from error
    with archive:
        entries = archive.infolist()
        n_markup = sum(one.file_size for one in entries if PurePosixPath(one.filename).suffix.lower() in MARKUP)
        n_bytes = sum(one.file_size for one in entries)
        if len(entries) > MOST_ENTRIES:
            raise BadArchive(f"holds {len(entries):,} parts, more than the {MOST_ENTRIES:,} that are read. Split it")
        if n_markup > MOST_MARKUP or n_bytes > MOST_UNPACKED:
            n, most = (n_markup, MOST_MARKUP) if n_markup > MOST_MARKUP else (n_bytes, MOST_UNPACKED)
            raise BadArchive(
                f"unpacks to {format_bytes(n)}, more than the {format_bytes(most)} that are read. Split it"
            )
        if any(one.flag_bits & 1 for one in entries):
            raise BadArchive("needs a password. Save a copy without one")
        yield archive


def core_title(archive: zipfile.ZipFile) -> str:
    """Return the title that an Office file's properties have, or ""."""
    try:
        return ElementTree.fromstring(archive.read("docProps/core.xml")).findtext(TITLE) or ""
    except (KeyError, ElementTree.ParseError, zipfile.BadZipFile):
        return ""


def words(error: Exception) -> str:
    """Return an error's message, or its kind where it has none."""
    return " ".join(str(error).split())[:200] or type(error).__name__
