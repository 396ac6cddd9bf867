"""The modes that a measurement compares, written as ``full``, ``hypic:w=32``, ``last_state``, ``add``."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import Policy

SPELLING = re.compile(r"([a-z_]+)(?::w=(\d+))?")
COMPOSE = {"hypic": "exact", "last_state": "last_state", "add": "add"}
"""Name of a mode -> how it composes cached interiors; ``full`` composes nothing."""
DEFAULT_SEAM = 8


@dataclass(frozen=True)
class Mode:
    """A policy of the engine under its short name. ``str(mode)`` is how one writes it."""

    name: str
    seam_tokens: int = 0

    @property
    def policy(self) -> "Policy":
        from hypic_rag.engine import Policy

        if self.name == "full":
            return Policy(mode="full")
        return Policy(mode="hypic", seam_tokens=self.seam_tokens, compose=COMPOSE[self.name])  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name if self.name == "full" else f"{self.name}:w={self.seam_tokens}"


FULL = Mode("full")


def parse_mode(text: str) -> Mode:
    """Parse one mode, such as ``hypic:w=0``; the seam is 8 tokens unless given. Raises BadInput for others."""
    found = SPELLING.fullmatch(text.strip())
    names = ["full", *COMPOSE]
    if found is None or found[1] not in names:
        near = get_close_matches(text.partition(":")[0], names) or names
        raise BadInput(
            f"{text!r} is no mode; did you mean {' or '.join(near)}? "
            f"Modes are full, and {', '.join(COMPOSE)} with the seam's tokens as in hypic:w=8."
        )
    name, seam = found.groups()
    if name == "full":
        if seam is not None:
            raise BadInput(f"{text!r}: full recompute has no seam; write full")
        return FULL
    return Mode(name, DEFAULT_SEAM if seam is None else int(seam))


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Parse modes separated by commas, in their order, each once."""
    return tuple(dict.fromkeys(parse_mode(part) for part in text.split(",")))
