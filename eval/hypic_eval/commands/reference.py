"""``hypic-eval reference``: our answers against those of an independent implementation."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from hypic_eval.commands.options import (
    Device,
    Dtype,
    Limit,
    Model,
    Rows,
    open_engine,
    progress_bar,
    rows_beside,
    settings,
)


def run(
    data: Annotated[Path, Argument(exists=True, dir_okay=False, help="The questions, jsonl.")],
    reference: Annotated[Path, Argument(exists=True, dir_okay=False, help="The reference's answers to them, jsonl.")],
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("reference.json"),
    rows: Rows = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Answer the reference's questions in its modes and compare: answers, first-token KL, NLL, prompt tokens.

    Exit code 1 if a goal is missed. Run again after an interruption, it goes on where it stopped.
    """
    chosen = settings(model, device, dtype)

    from hypic_eval.reference import run_reference
    from hypic_eval.results import Results
    from hypic_eval.rows import RowFile
    from hypic_eval.table import markdown

    row_file = RowFile(rows or rows_beside(out))
    with progress_bar() as on_progress:
        run_reference(
            open_engine(chosen),
            data,
            reference,
            row_file,
            limit,
            lambda done, total: on_progress(reference.stem, done, total),
        ).save(out)
    results = Results.load(out)
    typer.echo(markdown(results))
    typer.echo(f"Results are in {out}, rows in {row_file.path}.", err=True)
    for row in results.missed_goals:
        typer.echo(
            f"goal missed: {row.mode}, {row.metric}: {row.value:.4g}, wanted {row.arrow} {row.goal:g}",
            err=True,
        )
    if results.missed_goals:
        raise typer.Exit(1)
