"""What several commands share: options, the engine they ask for, and the progress bar."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from hypic_rag.config import SETTINGS, Settings
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

Model = Annotated[str | None, Option("--model", help=SETTINGS["model"]["help"])]
Device = Annotated[str | None, Option("--device", help=SETTINGS["device"]["help"])]
Dtype = Annotated[str | None, Option("--dtype", help=SETTINGS["dtype"]["help"])]
Limit = Annotated[int | None, Option("--limit", min=1, help="Only the first questions of a file.")]
Rows = Annotated[Path | None, Option("--rows", help="Measured rows, to go on from. Default: beside --out.")]
# What decides the passages that a question is answered from; beside it --top-k, or --retrieve.
Order = Annotated[str | None, Option("--order", help=SETTINGS["order"]["help"])]
Search = Annotated[str | None, Option("--search", help=SETTINGS["search"]["help"])]
MinSimilarity = Annotated[str | None, Option("--min-similarity", help=SETTINGS["min_similarity"]["help"])]
Neighbours = Annotated[str | None, Option("--neighbours", help=SETTINGS["neighbours"]["help"])]
Reranker = Annotated[str | None, Option("--reranker", help=SETTINGS["reranker"]["help"])]
ChunkTokens = Annotated[str | None, Option("--chunk-tokens", help=SETTINGS["chunk_tokens"]["help"])]

Part = Annotated[
    str | None, Option("--part", help="Only a part of the questions: 2/4 is every fourth from the second.")
]


def parse_part(text: str | None) -> tuple[int, int]:
    """Read "2/4" as (2, 4); no text is the only part. Anything else is bad usage (exit code 2)."""
    found = re.fullmatch(r"(\d+)/(\d+)", text or "1/1")
    part = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part[0] <= part[1]:
        raise BadParameter(f"{text!r} is no part: write 2/4 for the second of four", param_hint="--part")
    return part


def settings(model: str | None, device: str | None, dtype: str | None, **others: object) -> Settings:
    """Load the settings with these flags on top; None: not given. A wrong value is bad usage (exit code 2)."""
    try:
        return Settings.load({"model": model, "device": device, "dtype": dtype, **others})
    except BadInput as error:
        raise BadParameter(str(error)) from error


def open_engine(chosen: Settings, cache_folder: Path | None = None) -> "SegmentEngine":
    """Open the engine of the chosen model, with an unlimited cache in memory or, if given, in a folder too.

    Its policy is the default one: a figure should not depend on what was calibrated on the machine.
    """
    from hypic_rag.cache import SegmentCache
    from hypic_rag.engine import Policy, SegmentEngine

    return SegmentEngine.from_pretrained(
        chosen.model,
        cache=SegmentCache.open(cache_folder),
        policy=Policy(),
        dtype=chosen.torch_dtype,
        device=chosen.torch_device,
        device_memory=chosen.device_memory,
    )


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on stderr, one line for each name that the yielded function is called with."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        lines: dict[str, object] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in lines:
                lines[name] = progress.add_task(name, total=total)
            progress.update(lines[name], completed=done)  # type: ignore[arg-type]

        yield show
