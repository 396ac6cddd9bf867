"""``hypic-qualify load``: a server under many connections."""

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from hypic_eval.commands.options import Device, Dtype, Limit, Model, open_engine, settings
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.rows import rows_beside
from typer import Option


def run(
    data: Annotated[
        Path, Option("--data", exists=True, dir_okay=False, help="Questions with documents, jsonl.")
    ] = Path("tests/data/hotpotqa_few.jsonl"),
    connections: Annotated[int, Option("--connections", min=1, help="Open at once.")] = 200,
    seconds: Annotated[float, Option("--seconds", min=5, help="How long.")] = 600,
    max_tokens: Annotated[int, Option("--max-tokens", min=1, help="Most tokens of an answer.")] = 8,
    url: Annotated[
        str | None, Option("--url", help="A server that runs, http://127.0.0.1:8000. Default: one is started.")
    ] = None,
    key: Annotated[str, Option("--key", envvar="HYPIC_KEY", help="The API key, where --url asks for one.")] = "",
    options: Annotated[str, Option("--options", help="Of the server that is started: '--max-running 16'.")] = "",
    limit: Limit = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("load.json"),
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Ask a server from many connections at once, and see whether it stays what it was.

    It ingests the documents of a file, then every connection asks question after question: answers a second, time to
    the first token, refusals (503, and no other error), how soon /health answers meanwhile, how the server's memory
    grows, and whether the answers are those of the same questions alone. Exit code 1 if a goal is missed.

    A server that is started has a HYPIC_HOME of its own, which is removed at the end.
    """
    chosen = settings(model, device, dtype)

    from hypic_eval.task import read_questions

    from hypic_qualify.agreement import explained
    from hypic_qualify.homes import temporary_home
    from hypic_qualify.load import answer_rows, measure_load, summarise
    from hypic_qualify.process import started

    def say(text: str) -> None:
        typer.echo(text, err=True)

    _, questions = read_questions(data, limit=limit)
    with contextlib.ExitStack() as stack:
        pid = None
        if url is None:
            flags = ["--model", chosen.model, "--device", chosen.device, "--dtype", chosen.dtype, *options.split()]
            server = stack.enter_context(started(stack.enter_context(temporary_home()), *flags))
            url, pid = server.url, server.pid
        measured = measure_load(url, questions, connections, seconds, max_tokens, key, pid, say)
    differences = []
    if pairs := measured.differing:  # now that the server's own model has left
        say(f"scoring {len(pairs)} answers that differ")
        differences = explained(open_engine(chosen), pairs)
    summarise(measured, data.stem, differences).save(out)
    rows = rows_beside(out)
    rows.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answer_rows(measured.load)), "utf-8")
    results = show(out, rows)
    outcomes = results.samples["outcomes"]
    say(", ".join(f"{name}: {n}" for name, n in sorted(outcomes.items())))
    hold_to_goals(results, [f"{name}: {text}" for name, text in results.samples["errors"].items() if name != "503"])
