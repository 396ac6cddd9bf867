"""``hypic-eval table``: saved results as markdown."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from hypic_eval.gpu import page
from hypic_eval.results import Results
from hypic_eval.table import markdown


def run(
    files: Annotated[list[Path], Argument(exists=True, dir_okay=False, help="Files written with --out.")],
) -> None:
    """Print saved results as markdown tables."""
    for path in files:
        results = Results.load(path)
        typer.echo(page.markdown(results) if results.kind == "gpu" else markdown(results))
