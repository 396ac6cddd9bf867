"""``hypic-eval compare``: what changed between two runs beyond noise."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from hypic_eval.commands.report_results import tables

RUN = "Written with --out, its rows beside it, or rows themselves (jsonl)."


def run(
    first: Annotated[Path, Argument(exists=True, dir_okay=False, help=RUN)],
    second: Annotated[Path, Argument(exists=True, dir_okay=False, help=RUN)],
    out: Annotated[Path | None, Option("--out", help="Save the comparison as JSON, too.")] = None,
) -> None:
    """Tell what a second run has better or worse than a first one, question by question.

    Of the same questions in the same modes: another model, another commit, another codec. A difference counts where
    the 95% interval of the paired bootstrap does not have 0 in it.
    """
    from hypic_eval.compare import compare_runs

    results = compare_runs(first, second)
    if out is not None:
        results.save(out)
    typer.echo(tables(results))
