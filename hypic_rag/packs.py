"""How work is cut: documents into packs, and packs into passes of the model, by one rule."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Limit = tuple[Callable[[Item], int], Callable[[], float]]
"""A size of an item, and how much of it a pack may have: asked anew for every pack."""


def packs(items: Sequence[Item], *limits: Limit[Item]) -> Iterator[Sequence[Item]]:
    """Cut items, in their order, into packs within all limits; one that is larger is a pack of its own."""
    start = 0
    while start < len(items):
        rooms = [room() for _, room in limits]
        taken = [size(items[start]) for size, _ in limits]
        end = start + 1
        while end < len(items):
            taken = [before + size(items[end]) for before, (size, _) in zip(taken, limits, strict=True)]
            if any(n > room for n, room in zip(taken, rooms, strict=True)):
                break
            end += 1
        yield items[start:end]
        start = end
