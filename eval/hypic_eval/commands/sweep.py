"""``hypic-eval sweep``: quality along one axis."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option

from hypic_eval.commands.options import (
    Device,
    Dtype,
    Limit,
    Model,
    Part,
    Rows,
    open_engine,
    parse_part,
    progress_bar,
    settings,
)
from hypic_eval.commands.report_results import show
from hypic_eval.modes import parse_modes
from hypic_eval.rows import rows_beside
from hypic_rag.errors import BadInput


def run(
    data: Annotated[Path, Argument(exists=True, dir_okay=False, help="jsonl rows {id, question, docs, answers}.")],
    axis: Annotated[
        Literal["seam", "documents", "size", "order", "gold", "budget"],
        Option("--axis", help="What is varied: the seam, number or size of segments, order, place of gold, budget."),
    ],
    values: Annotated[str | None, Option("--values", help="Instead of the usual ones: 0,8,32.")] = None,
    modes: Annotated[str, Option("--modes", help="As for quality; budget has none.")] = "none,full,hypic:w=8",
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("sweep.json"),
    rows: Rows = None,
    part: Part = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Measure the same questions at several values of one thing, and save rows as quality does.

    seam: 0 to 64 tokens. documents: so many, those with the answer among them. size: documents cut or put together to
    segments of at most so many tokens. order: shuffles by seed, 0 is the data set's. gold: where the documents with the
    answer stand, 0 first, 1 last. budget: of a cache, in percent of what all segments take; the share that comes from
    it where documents are asked for by Zipf, and no model runs. hypic-eval report draws the curves.
    """
    try:
        chosen_modes = parse_modes(modes)
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--modes") from error
    try:
        places = None if values is None else [float(value) for value in values.split(",")]
    except ValueError as error:
        raise BadParameter(f"{values!r} are no numbers: write 0,8,32", param_hint="--values") from error
    chosen_part, chosen = parse_part(part), settings(model, device, dtype)

    from hypic_eval.rows import RowFile
    from hypic_eval.sweep import VALUES, run_sweep

    at = VALUES[axis] if places is None else places
    if axis == "budget":
        from hypic_eval.cache_budget import run_budget_sweep

        with progress_bar() as on_progress:
            run_budget_sweep(open_engine(chosen), data, at, limit, on_progress).save(out)
        show(out)
        return
    row_file = RowFile(rows or rows_beside(out))
    with progress_bar() as on_progress:
        engine = open_engine(chosen)
        run_sweep(engine, data, axis, at, chosen_modes, row_file, limit, on_progress, chosen_part).save(out)
    show(out, row_file.path)
