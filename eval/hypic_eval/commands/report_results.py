"""How every command that measures ends: its tables, where the results are, which goals they miss, the exit code."""

from collections.abc import Sequence
from pathlib import Path

import typer

from hypic_eval.gpu import page
from hypic_eval.results import Results
from hypic_eval.table import markdown


def tables(results: Results) -> str:
    return page.markdown(results) if results.kind == "gpu" else markdown(results)


def show(out: Path, rows: Path | None = None) -> Results:
    """Print what was saved in ``out``, so that a table is never of anything else. rows: where measured rows are."""
    results = Results.load(out)
    typer.echo(tables(results))
    typer.echo(f"Results are in {out}{f', rows in {rows}' if rows else ''}.", err=True)
    return results


def hold_to_goals(results: Results, failures: Sequence[str] = ()) -> None:
    """Exit code 1 where a goal is missed, a figure does not count, or anything else failed; which is told."""
    for failure in failures:
        typer.echo(f"failed: {failure}", err=True)
    for row in results.missed_goals:
        typer.echo(f"goal missed: {row.mode}, {row.metric}: {row.value:.4g}, wanted {row.arrow} {row.goal:g}", err=True)
    if failures or results.missed_goals or any(row.settings.get("void") for row in results.rows):
        raise typer.Exit(1)
