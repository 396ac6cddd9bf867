"""``hypic-qualify tenants``: what one tenant can tell of another."""

from pathlib import Path
from typing import Annotated

import typer
from hypic_eval.commands.options import Device, Dtype, Model, Rows, progress_bar, settings
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.rows import rows_beside
from typer import Option


def run(
    n: Annotated[int, Option("--n", min=20, help="Requests that are compared, half of each kind.")] = 300,
    seed: Annotated[int, Option("--seed", help="Of the documents and their order.")] = 0,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("tenants.json"),
    rows: Rows = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Ask a server as two tenants over the same text: no hit across, and no time that tells.

    Tenant B's answers over documents that tenant A has cached are compared with those over documents that nobody has,
    in turn, in pairs. Their times are equivalent where the 90% interval of the difference lies within a tenth of the
    time between a miss and a hit. Exit code 1 where it does not, or where a segment is found across. On a machine that
    does other things meanwhile the interval is wide, and more requests are needed. Run again after an
    interruption, or with a larger n, it goes on where it stopped.
    """
    chosen = settings(model, device, dtype)

    from hypic_eval.rows import RowFile

    from hypic_qualify.homes import new_key, temporary_home
    from hypic_qualify.process import started
    from hypic_qualify.tenants import measure_tenants, summarise

    row_file = RowFile(rows or rows_beside(out))
    with temporary_home() as home:
        keys = new_key(home, "ours"), new_key(home, "theirs")
        flags = ["--model", chosen.model, "--device", chosen.device, "--dtype", chosen.dtype]
        with started(home, *flags) as server, progress_bar() as on_progress:
            times = measure_tenants(
                server.url,
                keys,
                n,
                seed,
                row_file,
                chosen.model,
                lambda done, total: on_progress("rounds", done, total),
            )
    results, verdict = summarise(chosen.model, times)
    results.save(out)
    show(out, row_file.path)
    if verdict is not None:
        low, high = verdict.interval
        typer.echo(
            f"{'equivalent' if verdict.equivalent else 'NOT shown to be equivalent'}: a difference of "
            f"{verdict.difference:.2f} ms [{low:.2f}, {high:.2f}], allowed are {verdict.margin:.2f} ms",
            err=True,
        )
    hold_to_goals(
        results, ["a hit is no quicker than a miss: there is nothing to compare with"] if verdict is None else []
    )
