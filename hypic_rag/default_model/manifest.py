"""The manifest of a built model folder: what was written, from what, and whether it is still whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hypic_rag.stored_json import parse_object

FILE = "hypic_manifest.json"
FORMAT = "hypic-default-model"
VERSION = 1
CHEAP_BYTES = 8 * 2**20  # files up to this size are hashed at every check (about 10 ms in all)


def sha256_of(path: Path) -> str:
    """Hash a file's bytes: sha256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_for(folder: Path, sources: dict[str, str]) -> str:
    """Write the manifest of all files now in ``folder``, as JSON. ``sources``: name -> sha256 of an ingredient."""
    files = {
        path.name: {"n_bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != FILE
    }
    manifest = {"format": FORMAT, "version": VERSION, "sources": sources, "files": files}
    return json.dumps(manifest, indent=2) + "\n"


def problems(folder: Path, sources: dict[str, str], *, full: bool = False) -> list[str]:
    """List what is wrong with a built folder, one line each; an empty list means it is whole.

    Sizes of all files are compared, and the sha256 of the small ones; of every file where ``full``.
    A folder built from other ``sources`` counts as wrong.
    """
    try:
        manifest = parse_object((folder / FILE).read_bytes())
        found_format, wanted_format = f"{manifest['format']} {manifest['version']}", f"{FORMAT} {VERSION}"
        if found_format != wanted_format:
            return [f"{FILE} is of format {found_format}, not {wanted_format}"]
        found = [
            f"built from {name} {manifest['sources'].get(name)}, not {wanted}"
            for name, wanted in sources.items()
            if manifest["sources"].get(name) != wanted
        ]
        for name, entry in manifest["files"].items():
            found += _file_problems(folder / name, entry, full)
        return found
    except FileNotFoundError:
        return [f"{FILE} is missing"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{FILE} cannot be read: {error}"]


def _file_problems(path: Path, entry: dict[str, Any], full: bool) -> list[str]:
    if not path.is_file():
        return [f"{path.name} is missing"]
    n_bytes = path.stat().st_size
    if n_bytes != entry["n_bytes"]:
        return [f"{path.name} has {n_bytes:,} bytes, not {entry['n_bytes']:,}"]
    if (full or n_bytes <= CHEAP_BYTES) and sha256_of(path) != entry["sha256"]:
        return [f"{path.name} has been changed: its sha256 is not {entry['sha256']}"]
    return []
