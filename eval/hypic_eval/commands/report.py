"""``hypic-eval report``: saved results as a page with tables and plots."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def run(
    files: Annotated[
        list[Path], Argument(exists=True, dir_okay=False, help="Written with --out by quality, sweep and replay.")
    ],
    out: Annotated[Path, Option("--out", file_okay=False, help="A folder: index.html, and figures as SVG and PNG.")],
) -> None:
    """Write a page of saved results: a table a data set, and figures that it explains.

    Score and PGR by mode, score against time to the first token, the curves of sweeps, the rates that a server
    holds. It needs no network and no script: open index.html, or put the folder on any web server.
    """
    from hypic_eval.report import write_report

    typer.echo(write_report(files, out))
