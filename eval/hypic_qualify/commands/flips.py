"""``hypic-qualify flips``: bits of a cache that are not what they were."""

import tempfile
from pathlib import Path
from typing import Annotated

from hypic_eval.commands.options import progress_bar
from hypic_eval.commands.report_results import hold_to_goals, show
from typer import Option


def run(
    n: Annotated[int, Option("--n", min=1, help="Bits, one at a time.")] = 10_000,
    seed: Annotated[int, Option("--seed", help="Of the bits.")] = 0,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("flips.json"),
) -> None:
    """Flip bits in the files of cached segments: each has to be found on loading, as a miss.

    With one flip in a hundred a question is answered, and the answer compared with that of the sound cache; one in
    twenty more is in the index. Exit code 1 where a flip is not found, or an answer is wrong.
    """
    from hypic_qualify.flips import run_flips

    with (
        tempfile.TemporaryDirectory(prefix="hypic-flips-", ignore_cleanup_errors=True) as folder,
        progress_bar() as bar,
    ):
        run_flips(Path(folder), n, seed, lambda done, total: bar("flips", done, total)).save(out)
    results = show(out)
    hold_to_goals(results, [f"not found: {bit}" for bit in results.samples["unfound"][:10]])
