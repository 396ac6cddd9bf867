"""``hypic-eval replay``: arrivals in time against a server, and the highest rate that it holds."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Argument, BadParameter, Option

from hypic_eval.commands.options import Device, Dtype, Model, Rows, settings
from hypic_eval.commands.report_results import show
from hypic_eval.rows import rows_beside

if TYPE_CHECKING:
    from hypic_qualify.clients import Load


@dataclass(frozen=True)
class HttpClients:
    url: str
    key: str

    def in_turn(self, bodies: Sequence[dict[str, Any]]) -> "Load":
        from hypic_qualify.clients import in_turn

        return in_turn(self.url, bodies, self.key)

    def at_times(self, bodies: Sequence[dict[str, Any]], times: Sequence[float]) -> "Load":
        from hypic_qualify.clients import at_times

        return at_times(self.url, bodies, times, self.key)


def run(
    data: Annotated[Path, Argument(exists=True, dir_okay=False, help="Questions with documents, jsonl.")],
    modes: Annotated[str, Option("--modes", help="hypic, prefix, full.")] = "hypic,prefix,full",
    arrivals: Annotated[str, Option("--arrivals", help="poisson, bursty.")] = "poisson,bursty",
    seconds: Annotated[float, Option("--seconds", min=1, help="Of a run at one rate.")] = 60,
    limit: Annotated[int, Option("--limit", min=1, help="Most requests of a run.")] = 200,
    within: Annotated[float, Option("--within", min=0.001, help="Seconds to the first token, to hold a rate.")] = 1.0,
    percentile: Annotated[int, Option("--percentile", min=1, max=100, help="Of the requests that keep it.")] = 95,
    bisections: Annotated[int, Option("--bisections", min=0, help="Runs between held and not held.")] = 2,
    documents: Annotated[int, Option("--documents", min=1, help="That requests draw from.")] = 50,
    k: Annotated[int, Option("--k", min=1, help="Documents of a request.")] = 5,
    zipf: Annotated[float, Option("--zipf", min=0, help="Exponent of their popularity; 0: all alike.")] = 1.0,
    max_tokens: Annotated[int, Option("--max-tokens", min=1, help="Most tokens of an answer.")] = 8,
    seed: Annotated[int, Option("--seed", help="Of arrivals and documents.")] = 0,
    url: Annotated[
        str | None, Option("--url", help="A server that runs, http://127.0.0.1:8000. Default: one is started.")
    ] = None,
    key: Annotated[str, Option("--key", envvar="HYPIC_KEY", help="The API key, where --url asks for one.")] = "",
    options: Annotated[str, Option("--options", help="Of the server that is started: '--max-running 16'.")] = "",
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("replay.json"),
    rows: Rows = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Replay arrivals against a server: time to the first token by rate, and the highest rate that it holds.

    The same requests in hypic mode, with prefix reuse alone, and in full mode. Rates are doubled from what a single
    client gets until one is not held, then bisected. Run again after an interruption, it goes on where it stopped. A
    server that is started has a HYPIC_HOME of its own, which is removed at the end.
    """
    from hypic_eval.replay import WAYS, ReplaySettings, run_replay
    from hypic_eval.trace import Arrivals

    ways = listed(modes, list(WAYS), "--modes")
    kinds: Any = listed(arrivals, get_args(Arrivals), "--arrivals")
    chosen = settings(model, device, dtype)
    how = ReplaySettings(seconds, limit, documents, k, zipf, max_tokens, 1e3 * within, percentile, bisections, seed)

    from hypic_qualify.api import Api
    from hypic_qualify.homes import temporary_home
    from hypic_qualify.process import started

    from hypic_eval.rows import RowFile
    from hypic_eval.task import read_questions

    def say(text: str) -> None:
        typer.echo(text, err=True)

    _, questions = read_questions(data)
    row_file = RowFile(rows or rows_beside(out))
    with contextlib.ExitStack() as stack:
        if url is None:
            flags = ["--model", chosen.model, "--device", chosen.device, "--dtype", chosen.dtype, *options.split()]
            url = stack.enter_context(started(stack.enter_context(temporary_home()), *flags)).url
        server = stack.enter_context(Api(url, key)).ask("GET", "/v1/server")
        clients = HttpClients(url, key)
        run_replay(clients, server, data.stem, questions, ways, kinds, how, row_file, options, say).save(out)
    show(out, row_file.path)


def listed(text: str, known: Sequence[str], option: str) -> list[str]:
    """Read names separated by commas, each once. Another name is bad usage (exit code 2)."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}", param_hint=option)
    return names
