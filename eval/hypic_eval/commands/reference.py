"""``hypic-eval reference``: our answers against those of an independent implementation."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hypic_eval.commands.options import (
    Device,
    Dtype,
    Limit,
    Model,
    Rows,
    open_engine,
    progress_bar,
    settings,
)
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.rows import rows_beside


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
    from hypic_eval.rows import RowFile

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
    hold_to_goals(show(out, row_file.path))
