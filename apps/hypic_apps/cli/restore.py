"""``hypic-rag restore``: a backup put back."""

from pathlib import Path
from typing import Annotated

from typer import Argument


def run(file: Annotated[Path, Argument(metavar="FILE", help="What hypic-rag backup wrote.")]) -> None:
    """Put a backup back into a HYPIC_HOME that has no collections. Settings and calibrations that are there stay."""
    from hypic_apps.backup import restore
    from hypic_rag.config import home

    done = restore(file, home())
    print(f"{home()}: {done.n_collections} collections, {done.n_files} files")
