"""``hypic-rag backup``: what cannot be made again, in one file."""

from pathlib import Path
from typing import Annotated

from typer import Argument


def run(file: Annotated[Path, Argument(metavar="FILE", help="To be written: a .tar, or .tar.gz.")]) -> None:
    """Write keys, collections, settings and calibrations into an archive, also beside a running server.

    Segments and models are not in it: they are made again when they are asked for. To take segments along as well:
    hypic-rag cache export.
    """
    from hypic_apps.backup import back_up
    from hypic_rag.config import format_bytes, home

    done = back_up(home(), file)
    print(f"{file}: {done.n_collections} collections, {done.n_files} files, {format_bytes(done.nbytes)}")
