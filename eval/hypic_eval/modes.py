"""The modes that a measurement compares, written as ``full``, ``none``, ``prefix``, ``kv_only``, ``selective:p=15``,
``hypic:w=32``, ``last_state``, ``add``."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import Policy
    from hypic_rag.prompt import Prompt

SPELLING = re.compile(r"([a-z_]+)(?::([wp])=(\d+))?")
COMPOSE = {"hypic": "exact", "last_state": "last_state", "add": "add"}
"""Name of a mode with a seam -> how it composes cached interiors."""
SEAMLESS = {
    "none": "the question without documents, run in full: the floor",
    "full": "every token run in its place: the ceiling",
    "prefix": "the system text from the cache, as an exact prefix, and everything else run: what a prefix cache can "
    "do for documents in any order; full's answers",
    "kv_only": "keys and values from the cache, turned to their places, and nothing run again, as CacheBlend without "
    "recompute; recurrent layers see no document (kv_only.py)",
}
"""Name of a mode without a seam -> what it is."""
SELECTIVE = "selective"
"""Of the documents' tokens so many percent are run again, those that deviate most (selective.py)."""
DEFAULT_SEAM, DEFAULT_PERCENT = 8, 15


@dataclass(frozen=True)
class Mode:
    """A way to answer, under its short name. ``str(mode)`` is how one writes it. percent: of SELECTIVE."""

    name: str
    seam_tokens: int = 0
    percent: int = 0

    @property
    def policy(self) -> "Policy":
        from hypic_rag.engine import Policy

        if self.name in ("none", "full"):
            return Policy(mode="full")
        if self.name == "prefix":
            return Policy()
        compose = {"kv_only": "add", SELECTIVE: "exact", **COMPOSE}[self.name]
        return Policy(mode="hypic", seam_tokens=self.seam_tokens, compose=compose)  # type: ignore[arg-type]

    @property
    def caches_documents(self) -> bool:
        return self.name in COMPOSE or self.name in ("kv_only", SELECTIVE)

    def prompt(self, whole: "Prompt") -> "Prompt":
        """Make of a prompt what is asked and cacheable: all of it, but for ``none`` and ``prefix``."""
        if self.name == "none":
            return replace(whole, parts=tuple(part for part in whole.parts if part.kind != "document"))
        return documents_live(whole) if self.name == "prefix" else whole

    def __str__(self) -> str:
        if self.name == SELECTIVE:
            return f"{self.name}:p={self.percent}"
        return self.name if self.name in SEAMLESS else f"{self.name}:w={self.seam_tokens}"


NONE, FULL = Mode("none"), Mode("full")


def documents_live(prompt: "Prompt") -> "Prompt":
    """Make a prompt of the same tokens with only the leading segment cacheable: what reuse of exact prefixes can do."""
    from hypic_rag.prompt import Prompt

    leading = prompt.parts[0].ids if prompt.parts[0].kind == "leading" else ()
    return Prompt.build(leading, (), prompt.token_ids[len(leading) :])


def parse_mode(text: str) -> Mode:
    """Read one mode, such as ``hypic:w=0``; the seam is 8 tokens unless given, selective's share 15%. Raises BadInput
    for others."""
    found = SPELLING.fullmatch(text.strip())
    names = [*SEAMLESS, SELECTIVE, *COMPOSE]
    if found is None or found[1] not in names:
        near = get_close_matches(text.partition(":")[0], names) or names
        raise BadInput(
            f"{text!r} is no mode; did you mean {' or '.join(near)}? "
            f"Modes are {', '.join(SEAMLESS)}, {', '.join(COMPOSE)} with the seam's tokens as in hypic:w=8, and "
            f"{SELECTIVE} with the percent of tokens as in {SELECTIVE}:p=15."
        )
    name, letter, number = found.groups()
    if name == SELECTIVE:
        percent = DEFAULT_PERCENT if number is None else int(number)
        if letter == "w" or percent > 100:
            raise BadInput(f"{text!r}: {name} recomputes 0 to 100 percent of the tokens; write {name}:p=15")
        return Mode(name, percent=percent)
    if name in SEAMLESS:
        if number is not None:
            raise BadInput(f"{text!r}: {name} has no seam; write {name}")
        return Mode(name)
    if letter == "p":
        raise BadInput(f"{text!r}: {name} has a seam of so many tokens; write {name}:w=8")
    return Mode(name, DEFAULT_SEAM if number is None else int(number))


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Read modes separated by commas, in their order, each once."""
    return tuple(dict.fromkeys(parse_mode(part) for part in text.split(",")))
