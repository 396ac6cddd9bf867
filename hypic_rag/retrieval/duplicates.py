"""Passages that say the same: of several only the first is of use in a prompt."""

import re
from collections.abc import Sequence

SHORT = 20  # words; what fewer say depends on their title
WORD = re.compile(r"\w+")


def first_of_each(passages: Sequence[tuple[str, str]]) -> list[int]:
    """Return the positions of the (title, text) passages that no earlier one says already, in order.

    An earlier one says it, whose words are the same, or have them as a run: case, punctuation, spaces and, but for
    short texts, titles aside. Texts that differ in a single word are both kept: it may be the name or the year that is
    asked for.
    """
    kept: list[int] = []
    said: list[str] = []
    for i, (title, text) in enumerate(passages):
        words = WORD.findall(text.casefold())
        if len(words) < SHORT:
            words = [*WORD.findall(title.casefold()), "\n", *words, "\n"]  # no run of a longer text
        run = f" {' '.join(words)} "
        if not any(run in other for other in said):
            kept.append(i)
            said.append(run)
    return kept
