"""``hypic-rag calibrate MODEL``: measure every policy against full recompute, every order of passages on the documents
that are there, and put the best in force."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Context, Option

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings("model", "top_k", "chunk_tokens", *options.DOCUMENTS, "embedder", "dtype", "device")
def run(
    settings: Settings,
    context: Context,
    name: Annotated[str | None, Argument(metavar="MODEL", help="The same as --model.")] = None,
    data: Annotated[
        Path | None,
        Option(
            "--data",
            help="A file or folder of documents, or jsonl rows {question, docs: [{title, text}]}. Else bundled ones.",
        ),
    ] = None,
    limit: Annotated[int, Option("--limit", min=1, help="How many prompts, the first of the data.")] = 8,
    max_kl: Annotated[
        float | None,
        Option(
            "--max-kl",
            help="Good enough: at most this continuation KL to full, nats a token (0.5: a token of full's answer is "
            "on average 1.6 times less likely).",
            show_default=False,
        ),
    ] = None,
    min_same_first: Annotated[
        float | None,
        Option(
            "--min-same-first",
            help="Good enough: the first token of full in at least this share of prompts (0.5).",
            show_default=False,
        ),
    ] = None,
    distance: Annotated[
        float | None,
        Option(
            "--distance",
            help="The smallest seam within so many nats a token of the best is taken (0.05).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, Option("--out", help="Write the result to this file, and put nothing in force.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure seams 0 to 32, compositions and isolation prefixes against full recompute, and choose.

    Prompts are the rows of --data, or --top-k consecutive chunks and how a passage of one goes on. The choice is the
    smallest seam whose continuation KL (over full's own answer of up to 16 tokens) is near the best, among the
    policies that are good enough. Where none is, it is full recompute. From then on it is the model's policy
    wherever none is given, in commands and in the library.

    The order of passages in the prompt is chosen beside it, on the documents of the collection or store: which of them
    makes how their own texts go on likeliest. Without documents none is chosen.
    """
    from hypic_rag.retrieval.readers import read_path

    if name is not None and context.params["model"] not in (None, name):
        raise BadParameter(f"MODEL {name} and --model {context.params['model']} are two models: give one")
    if data is not None:
        read_path(data)  # a path that is not there is told now, before a model is loaded

    from hypic_apps import calibration

    given = {"max_kl": max_kl, "min_same_first": min_same_first, "distance": distance}
    chosen = settings if name is None else replace(settings, model=name)
    found, file = calibration.calibrate_model(chosen, data, limit, given, out)
    if as_json:
        print(json.dumps(calibration.fields(found, file), ensure_ascii=False, indent=2))
    else:
        calibration.print_table(found)
        print(calibration.outcome_text(found, file, in_force=out is None))
