"""``hypic-eval codecs``: what storing segments in fewer bits costs."""

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
    settings,
)
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.modes import COMPOSE, parse_mode
from hypic_eval.rows import rows_beside
from hypic_rag.errors import BadInput

CODECS, MODE = "int8,int8-kv8", "hypic:w=8"


def run(
    data: Annotated[Path, Argument(exists=True, dir_okay=False, help="The questions, jsonl.")],
    codecs: Annotated[str, Option("--codecs", help="Separated by commas; each is compared with none.")] = CODECS,
    mode: Annotated[str, Option("--mode", help="How documents are assembled: hypic:w=8, last_state, add.")] = MODE,
    long: Annotated[
        int | None, Option("--long", min=2, help="Instead, greedy answers of up to so many tokens: 256 to 1024.")
    ] = None,
    ignore_end: Annotated[
        bool, Option("--ignore-end", help="With --long: go on behind end tokens, where a model answers shortly.")
    ] = False,
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("codecs.json"),
    rows: Rows = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Answer every question from the same entries, stored as computed and by each codec, and compare.

    Bytes a segment, first-token KL to codec none (in thousandths of a nat), equal first tokens and answers, scores
    with paired differences. Documents are prefilled once a question, and every codec stores the same entries.
    With --long: where answers leave those of codec none, the NLL of full recompute's text, and whether they go round in
    circles; take a set that is answered at length, such as Multi-News.
    Exit code 1 if a goal is missed. Run again after an interruption, it goes on.
    """
    try:
        chosen_mode = parse_mode(mode)
        if chosen_mode.name not in COMPOSE:
            raise BadInput(f"{chosen_mode} does not assemble stored segments; name hypic:w=8, last_state or add")
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--mode") from error
    if ignore_end and long is None:
        raise BadParameter("it is of long answers: give --long", param_hint="--ignore-end")
    chosen = settings(model, device, dtype)

    from hypic_eval.codecs import NONE, run_codecs
    from hypic_eval.long_outputs import run_long_outputs
    from hypic_eval.rows import RowFile
    from hypic_rag.cache import codec_named

    names = [name for name in dict.fromkeys(one.strip() for one in codecs.split(",")) if name != NONE]
    try:
        for name in names:
            codec_named(name)
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--codecs") from error
    row_file = RowFile(rows or rows_beside(out))
    with progress_bar() as on_progress:

        def tick(done: int, total: int) -> None:
            on_progress(data.stem, done, total)

        engine = open_engine(chosen)
        if long is None:
            results = run_codecs(engine, data, names, chosen_mode, row_file, limit, tick)
        else:
            results = run_long_outputs(engine, data, names, chosen_mode, long, row_file, limit, tick, ignore_end)
        results.save(out)
    hold_to_goals(show(out, row_file.path))
