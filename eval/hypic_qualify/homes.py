"""HYPIC_HOMEs that are thrown away: a server's own, with the models of the user's."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypic_rag.config import home


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    """Make a home under the user's, so that the disk is the one that a real server has."""
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home(), prefix="eval-", ignore_cleanup_errors=True) as folder:
        models = home() / "models"
        models.mkdir(exist_ok=True)
        (Path(folder) / "models").symlink_to(models.resolve())
        yield Path(folder)


def new_key(home: Path, tenant: str) -> str:
    """Make a new API key."""
    command = [sys.executable, "-m", "hypic_apps.cli.main", "keys", "add", "--tenant", tenant]
    made = subprocess.run(
        command, env={**os.environ, "HYPIC_HOME": str(home)}, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()
