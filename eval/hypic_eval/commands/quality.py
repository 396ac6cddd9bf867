"""``hypic-eval quality``: scores of several modes, with intervals and differences to full recompute."""

from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

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
from hypic_eval.commands.report_results import show
from hypic_eval.modes import parse_modes
from hypic_rag.errors import BadInput

MODES = "full,hypic:w=0,hypic:w=8,hypic:w=32,last_state,add"


def run(
    files: Annotated[
        list[Path],
        Argument(exists=True, dir_okay=False, help="jsonl rows {id, question, docs, answers, dataset}."),
    ],
    modes: Annotated[str, Option("--modes", help="full; hypic, last_state, add with a seam, as in hypic:w=8.")] = MODES,
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("results.json"),
    rows: Rows = None,
    task: Annotated[str | None, Option("--task", help="Instead of the task that the rows' dataset tells.")] = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Answer every question in every mode and score the answers.

    F1, EM and ROUGE-L of the answer, NLL of the right answer, first-token KL against full recompute. Run
    again after an interruption, it goes on where it stopped.
    """
    try:
        chosen_modes = parse_modes(modes)
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--modes") from error
    chosen = settings(model, device, dtype)

    from hypic_eval.quality import run_quality
    from hypic_eval.rows import RowFile

    row_file = RowFile(rows or rows_beside(out))
    with progress_bar() as on_progress:
        run_quality(open_engine(chosen), files, chosen_modes, row_file, task, limit, on_progress).save(out)
    show(out, row_file.path)
