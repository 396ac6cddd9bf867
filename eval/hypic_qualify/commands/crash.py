"""``hypic-qualify crash``: a server that is killed."""

import tempfile
from pathlib import Path
from typing import Annotated

from hypic_eval.commands.options import Rows, progress_bar
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.rows import rows_beside
from typer import Option


def run(
    n: Annotated[int, Option("--n", min=1, help="How often it is killed.")] = 200,
    seed: Annotated[int, Option("--seed", help="Of what is asked, and of the moments.")] = 0,
    folder: Annotated[Path | None, Option("--folder", help="Where it works, and leaves all for a look.")] = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("crash.json"),
    rows: Rows = None,
) -> None:
    """Kill a server (SIGKILL) at random moments, and see whether it keeps what it has said.

    While files are uploaded, ingested and deleted, and segments written, evicted and written behind. After each kill
    SQLite's integrity_check looks at every database, and the next server has to have every file that was taken, find
    every text that was ready, and have nothing of what was deleted: no file without a row, no row without a file. Exit
    code 1 where something is broken. Run again after an interruption, it goes on where it stopped.
    """
    from hypic_eval.rows import RowFile

    from hypic_qualify.crash import run_crash

    row_file = RowFile(rows or rows_beside(out))
    with (
        tempfile.TemporaryDirectory(prefix="hypic-crash-", ignore_cleanup_errors=True) as temporary,
        progress_bar() as bar,
    ):
        place = (folder or Path(temporary)).resolve()
        run_crash(place, n, seed, row_file, lambda done, total: bar("kills", done, total)).save(out)
    results = show(out, row_file.path)
    hold_to_goals(results, results.samples["broken"])
