"""Where the pages of a text begin, counted in characters that are no blanks: blanks change as a text is cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Pages = tuple[tuple[int, str], ...]
"""Of each page with text: the characters before it, and its label ("7", "iv"), in order. None of what has no pages."""


def n_solid(text: str) -> int:
    """Count the characters that are no blanks."""
    return sum(map(len, text.split()))


def joined(labelled: Iterable[tuple[str, str]]) -> tuple[str, Pages]:
    """Join pages, (label, text), with a blank line between; those of blanks are left out. Return where each begins."""
    texts: list[str] = []
    pages: list[tuple[int, str]] = []
    at = 0
    for label, text in labelled:
        if text := text.strip():
            texts.append(text)
            pages.append((at, label))
            at += n_solid(text)
    return "\n\n".join(texts), tuple(pages)


def from_place(pages: Pages, start: int) -> Pages:
    """Return the pages of what is left of a text behind its first ``start`` characters."""
    return tuple((max(0, at - start), label) for at, label in pages[_on(pages, start) :])


def label_of(pages: Pages, start: int, end: int) -> str:
    """Return the label of the page that characters from ``start`` to before ``end`` are on; ``7–8`` of several, empty
    where there are no pages."""
    if not pages:
        return ""
    first, last = (pages[_on(pages, at)][1] for at in (start, max(start, end - 1)))
    return first if first == last else f"{first}–{last}"


def _on(pages: Pages, at: int) -> int:
    """Return the place of the page that a character is on."""
    return max(0, bisect_right(pages, at, key=lambda page: page[0]) - 1)
