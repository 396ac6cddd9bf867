"""``hypic-eval quality``: scores of several modes, with intervals and differences to full recompute."""

from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from hypic_eval.commands.options import (
    ChunkTokens,
    Device,
    Dtype,
    Limit,
    MinSimilarity,
    Model,
    Neighbours,
    Order,
    Part,
    Reranker,
    Rows,
    Search,
    open_engine,
    parse_part,
    progress_bar,
    settings,
)
from hypic_eval.commands.report_results import show
from hypic_eval.modes import parse_modes
from hypic_eval.rows import rows_beside
from hypic_rag.errors import BadInput

MODES = "none,full,prefix,hypic:w=0,hypic:w=8,hypic:w=32,last_state,add,kv_only"


def run(
    files: Annotated[
        list[Path],
        Argument(exists=True, dir_okay=False, help="jsonl rows {id, question, docs, answers, dataset}."),
    ],
    modes: Annotated[
        str, Option("--modes", help="none, full, prefix, kv_only; hypic:w=8, last_state:w=8, add:w=8; selective:p=15.")
    ] = MODES,
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("results.json"),
    rows: Rows = None,
    task: Annotated[str | None, Option("--task", help="Instead of the task that the rows' dataset tells.")] = None,
    part: Part = None,
    retrieve: Annotated[
        int | None, Option("--retrieve", min=1, help="Ask over so many passages found among those of all rows.")
    ] = None,
    turns: Annotated[
        int | None, Option("--turns", min=2, help="Ask so many rows after one another as turns of a conversation.")
    ] = None,
    stores: Annotated[
        Path | None, Option("--stores", file_okay=False, help="Where those are kept. Default: HYPIC_HOME/evaluation.")
    ] = None,
    order: Order = None,
    search: Search = None,
    min_similarity: MinSimilarity = None,
    neighbours: Neighbours = None,
    reranker: Reranker = None,
    chunk_tokens: ChunkTokens = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Answer every question in every mode and score the answers.

    F1, EM and ROUGE-L of the answer, NLL of the right answer, first-token KL against full recompute, time to the first
    token from a warm cache; and PGR, (score - none) / (full - none), where documents help beyond noise. Run again after
    an interruption, it goes on where it stopped. Several processes may measure --part 1/4 to 4/4 into one --rows; run
    without --part afterwards, it finds all rows there. --order and what follows it are hypic-rag's own settings, and
    hold for what --retrieve finds. With --turns, earlier turns keep their documents and are answered rightly.
    """
    try:
        chosen_modes = parse_modes(modes)
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--modes") from error
    finding = {
        "order": order,
        "search": search,
        "min_similarity": min_similarity,
        "neighbours": neighbours,
        "reranker": reranker,
        "chunk_tokens": chunk_tokens,
    }
    if retrieve is None and (given := [name for name, value in finding.items() if value is not None]):
        raise BadParameter("it is of what is retrieved: give --retrieve", param_hint=f"--{given[0].replace('_', '-')}")
    if retrieve is not None and turns is not None:
        raise BadParameter("turns are asked over their rows' documents: leave out --retrieve", param_hint="--turns")
    chosen_part, chosen = parse_part(part), settings(model, device, dtype, top_k=retrieve, **finding)

    from hypic_eval.conversation import AskInTurns
    from hypic_eval.quality import Asking, ask_given, run_quality
    from hypic_eval.retrieved import AskRetrieved
    from hypic_eval.rows import RowFile

    row_file = RowFile(rows or rows_beside(out))
    asking: Asking = ask_given if retrieve is None else AskRetrieved(chosen, stores)
    if turns is not None:
        asking = AskInTurns(turns)
    with progress_bar() as on_progress:
        engine = open_engine(chosen)
        run_quality(engine, files, chosen_modes, row_file, task, limit, on_progress, chosen_part, asking).save(out)
    show(out, row_file.path)
