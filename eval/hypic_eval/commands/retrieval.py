"""``hypic-eval retrieval``: whether the passages that support an answer are found."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from hypic_eval.commands.options import Limit, Model, open_engine, progress_bar, settings
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_rag.config import SETTINGS
from hypic_rag.errors import BadInput

METHODS = "dense,lexical,hybrid"


def run(
    files: Annotated[
        list[Path],
        Argument(exists=True, dir_okay=False, help="jsonl rows {question, docs: [{title, text, gold}]}."),
    ],
    methods: Annotated[str, Option("--methods", help="Separated by commas; others are compared with dense.")] = METHODS,
    vectors: Annotated[
        Path | None, Option("--vectors", help="A folder that keeps vectors from one run to the next.")
    ] = None,
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("retrieval.json"),
    model: Model = None,
    embedder: Annotated[str | None, Option("--embedder", help=SETTINGS["embedder"]["help"])] = None,
) -> None:
    """Look for the supporting paragraphs of every question among the paragraphs of all.

    Recall, MRR and nDCG by dense, lexical and hybrid search with paired differences, and time a question. What the
    settings say of retrieval (reranker, min_similarity) holds. Exit code 1 if a question takes longer than the goal.
    """
    chosen = settings(model, None, None)
    try:
        each = {name: SETTINGS["search"]["parse"](name) for name in dict.fromkeys(map(str.strip, methods.split(",")))}
    except ValueError as error:
        raise BadParameter(str(error), param_hint="--methods") from error

    from hypic_eval.retrieval import run_retrieval
    from hypic_rag.rag import SearchOptions
    from hypic_rag.retrieval import Embedder

    if chosen.neighbours:
        raise BadInput("neighbours are not what was found: measure with neighbours = 0")
    options = [SearchOptions.of(replace(chosen, search=name)) for name in each]
    with progress_bar() as on_progress:
        of_texts = Embedder(embedder or chosen.embedder or "default")
        run_retrieval(open_engine(chosen), of_texts, files, options, vectors, limit, on_progress).save(out)
    hold_to_goals(show(out))
