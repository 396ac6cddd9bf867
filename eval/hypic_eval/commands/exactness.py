"""``hypic-eval exactness``: composition of every recurrence against a float64 one."""

from pathlib import Path
from typing import Annotated

from typer import Option

from hypic_eval.commands.options import progress_bar
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_rag.errors import BadInput


def run(
    families: Annotated[str, Option(help="Comma-separated names; all unless given.")] = "",
    segments: Annotated[
        str, Option(help="How many segments are composed; errors are noted after each number.")
    ] = "1,4,16,64",
    length: Annotated[int, Option(min=2, help="Tokens a segment.")] = 256,
    seam: Annotated[int, Option(min=0, help="First tokens of each segment that are run live.")] = 8,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("exactness.json"),
) -> None:
    """Compose segments of every recurrence, and compare with running every token in float64.

    On random inputs, for decays from 0.001 to 1 a token. The goal is 1e-6 in float32 at four segments of 256.
    """
    from hypic_eval.exactness import run_exactness
    from hypic_rag.engine.families import FAMILIES

    names = [name.strip() for name in families.split(",") if name.strip()] or list(FAMILIES)
    if unknown := [name for name in names if name not in FAMILIES]:
        raise BadInput(f"there is no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    try:
        counts = sorted({int(count) for count in segments.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise BadInput(f"--segments is {segments!r}; give numbers of 1 or more, as in 1,4,16")
    if seam >= length:
        raise BadInput(f"a seam of {seam} leaves nothing of segments of {length} tokens: give a smaller --seam")
    with progress_bar() as on_progress:
        run_exactness(names, counts, length, seam, lambda done, total: on_progress("exactness", done, total)).save(out)
    hold_to_goals(show(out))
