"""``hypic-eval plain-use``: everyday files, everyday questions, and how many answers are right."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
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
    Reranker,
    Search,
    open_engine,
    settings,
)
from hypic_eval.commands.report_results import show
from hypic_eval.modes import COMPOSE, FULL, parse_modes
from hypic_rag.config import SETTINGS
from hypic_rag.errors import BadInput

BUNDLED = Path("tests/data/plain_use")


def run(
    folder: Annotated[Path, Argument(exists=True, file_okay=False, help="documents/ and questions.jsonl.")] = BUNDLED,
    modes: Annotated[str, Option("--mode", help="full; hypic, last_state, add with a seam.")] = "hypic,full",
    limit: Limit = None,
    top_k: Annotated[str | None, Option("--top-k", help=SETTINGS["top_k"]["help"])] = None,
    order: Order = None,
    search: Search = None,
    min_similarity: MinSimilarity = None,
    neighbours: Neighbours = None,
    reranker: Reranker = None,
    chunk_tokens: ChunkTokens = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("plain_use.json"),
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Ingest a folder and ask questions about it as ingest and ask do, by the same settings, and count.

    An answer is right where an accepted one stands in it, word by word; for a question that the documents do not
    answer, where it says so. Evidence is found where a passage of the right file has it.
    """
    try:
        chosen_modes = parse_modes(modes)
        if others := [mode for mode in chosen_modes if mode != FULL and mode.name not in COMPOSE]:
            raise BadInput(f"the product has no mode {others[0]}; name full, hypic, last_state or add")
    except BadInput as error:
        raise BadParameter(str(error), param_hint="--mode") from error
    chosen = settings(
        model,
        device,
        dtype,
        top_k=top_k,
        order=order,
        search=search,
        min_similarity=min_similarity,
        neighbours=neighbours,
        reranker=reranker,
        chunk_tokens=chunk_tokens,
    )

    from hypic_eval.plain_use import PlainAnswer, run_plain_use

    def tell(one: PlainAnswer) -> None:
        found = "" if not one.question.document or one.rank is not None else ", not retrieved"
        typer.echo(
            f"{one.mode} {'right' if one.is_right else 'WRONG'}{found}: {one.question.text} {one.text!r}", err=True
        )

    with tempfile.TemporaryDirectory(prefix="hypic-plain-use-", ignore_cleanup_errors=True) as home:
        store = Path(home) / "store"
        results = run_plain_use(open_engine(chosen), folder, chosen_modes, chosen, store, limit, tell)
    results.save(out)
    show(out)
