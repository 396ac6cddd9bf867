"""How a prompt is run, and how its answer is drawn."""

from dataclasses import dataclass
from typing import Literal, get_args

from hypic_rag.errors import BadInput

Mode = Literal["hypic", "full"]
Compose = Literal["exact", "last_state", "add"]


@dataclass(frozen=True)
class Policy:
    """Recorded with every answer.

    mode: ``hypic`` assembles cached segments; ``full`` runs every token of the same ids.
    seam_tokens: the first tokens of each document that are run again in their place.
    compose: how a cached interior moves the running state; ``add`` is for ablation only.
    isolation_prefix: token ids put before a document while it is prefilled alone, then dropped: for models that
    lean on a first token (their BOS, say). They take no positions of the prompt.
    """

    mode: Mode = "hypic"
    seam_tokens: int = 8
    compose: Compose = "exact"
    isolation_prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, get_args(Mode)),
            ("compose", self.compose, get_args(Compose)),
        ):
            if value not in allowed:
                raise BadInput(f"{name} is {value!r}; it can be one of {', '.join(allowed)}")
        if not _is_count(self.seam_tokens):
            raise BadInput(f"seam_tokens is {self.seam_tokens}; give a whole number of 0 or more (8 is usual)")
        prefix = self.isolation_prefix
        if not isinstance(prefix, tuple) or not all(map(_is_count, prefix)):
            raise BadInput(f"isolation_prefix is {prefix!r}; give a tuple of token ids, such as (bos_token_id,)")


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the most likely token. ``stop`` strings end the answer and are not part of it.

    stop_repetition: end an answer that says the same over and over (``repetition.py``).
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_repetition: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise BadInput(f"max_new_tokens is {self.max_new_tokens}; give 1 or more")
        if not 0 <= self.temperature < float("inf"):  # NaN neither
            raise BadInput(f"temperature is {self.temperature}; give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}; give more than 0 and at most 1")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise BadInput(f"the seed is {self.seed}; give a whole number from 0 to {2**63 - 1}")
        if any(not text for text in self.stop):
            raise BadInput("an empty stop string would end every answer at once: leave it out")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
