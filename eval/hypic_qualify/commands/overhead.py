"""``hypic-qualify overhead``: what a server adds to the time to the first token."""

from pathlib import Path
from typing import Annotated

from hypic_eval.commands.options import Device, Dtype, Limit, Model, open_engine, progress_bar, settings
from hypic_eval.commands.report_results import hold_to_goals, show
from typer import Option


def run(
    data: Annotated[
        Path, Option("--data", exists=True, dir_okay=False, help="Questions with documents, jsonl.")
    ] = Path("tests/data/hotpotqa_few.jsonl"),
    n: Annotated[int, Option("--n", min=2, help="Requests by each way.")] = 200,
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("overhead.json"),
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Time the first token over HTTP and of an engine without a server, in turn, with one client.

    Exit code 1 where the server adds more than 5 ms. Run it on an idle machine: both have the model.
    """
    chosen = settings(model, device, dtype)

    from hypic_eval.task import read_questions

    from hypic_qualify.homes import temporary_home
    from hypic_qualify.overhead import measure_overhead, summarise
    from hypic_qualify.process import started

    _, questions = read_questions(data, limit=limit)
    flags = ["--model", chosen.model, "--device", chosen.device, "--dtype", chosen.dtype]
    with temporary_home() as home, started(home, *flags) as server:
        engine = open_engine(chosen)
        with progress_bar() as on_progress:
            rounds = measure_overhead(
                server.url, engine, questions, n, lambda done, total: on_progress("rounds", done, total)
            )
        summarise(engine.model_name, data.stem, rounds).save(out)
    hold_to_goals(show(out))
