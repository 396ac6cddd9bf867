"""``hypic-eval table``: saved results as markdown."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from hypic_eval.commands.report_results import tables
from hypic_eval.results import Results


def run(
    files: Annotated[list[Path], Argument(exists=True, dir_okay=False, help="Files written with --out.")],
) -> None:
    """Print saved results as markdown tables."""
    for path in files:
        typer.echo(tables(Results.load(path)))
