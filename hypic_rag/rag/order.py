"""In which order passages stand in the prompt. Segments are position-free, so that none costs more than another."""

from collections.abc import Callable, Sequence
from itertools import count, groupby
from typing import Literal, TypeVar

Order = Literal["nearest-first", "nearest-last", "document", "ends"]
"""``document``: as they stand in their documents, these by their ids. ``ends``: the nearest first, the second nearest
last, and so on inwards."""
DEFAULT_ORDER: Order = "nearest-last"
Place = tuple[str, int] | None
"""Of a chunk: its document's id, and its number there. None of what is no chunk."""
T = TypeVar("T")


def arrange(nearest_first: Sequence[T], order: Order, place_of: Callable[[T], Place]) -> list[T]:
    """Return the same items in this order. Chunks that adjoin in one document stay together, as they are read.

    Such a run stands where its nearest chunk would. Items without a place come first in ``document``.
    """
    runs = _runs([place_of(item) for item in nearest_first])
    if order == "document":
        runs.sort(key=lambda run: place_of(nearest_first[run[0]]) or ("", -1))
    elif order == "nearest-last":
        runs.reverse()
    elif order == "ends":
        runs = [*runs[::2], *reversed(runs[1::2])]
    return [nearest_first[i] for run in runs for i in run]


def _runs(places: Sequence[Place]) -> list[list[int]]:
    """Return runs of adjoining chunks as positions in ``places``, that with the smallest position first."""
    runs = [[i] for i, place in enumerate(places) if place is None]
    chunks = sorted((place, i) for i, place in enumerate(places) if place is not None)
    number = count()
    for _, run in groupby(chunks, key=lambda chunk: (chunk[0][0], chunk[0][1] - next(number))):
        runs.append([i for _, i in run])
    return sorted(runs, key=min)
