"""How a prompt is run, and how its answer is drawn."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from hypic_rag.engine.grammar import Grammar
from hypic_rag.errors import BadInput

Mode = Literal["hypic", "full"]
Compose = Literal["exact", "last_state", "add"]
MOST_LOGPROBS = 20


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
    top_k: draw among so many of the likeliest; 0: among all. min_p: among those that are at least this share as likely
    as the likeliest.
    frequency_penalty, presence_penalty: taken from a token's logit, for every time that the answer has it and once.
    repetition_penalty: divides a token's logit that is positive, multiplies one that is not, where prompt or answer
    have it (arXiv 1909.05858). logit_bias: (token id, what is added to its logit).
    stop_token_ids: end the answer, as the model's own end tokens do. ignore_eos: those do not. min_tokens: until
    the answer has so many, none of either is drawn.
    logprobs: tell the log-probability of every token, and of so many of the likeliest in its place; None: of none.
    They are the model's own: before temperature, penalties and whatever else limits what is drawn.
    grammar: the form that the answer has to have; one that ends with ``stop`` has it.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_repetition: bool = True
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    grammar: Grammar | None = None

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
        if not _is_count(self.top_k):
            raise BadInput(f"top_k is {self.top_k}; give a whole number of tokens to draw among, or 0 for all")
        if not 0 <= self.min_p <= 1:
            raise BadInput(f"min_p is {self.min_p}; give 0 (no limit) to 1")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise BadInput(f"{name} is {getattr(self, name)}; give -2 to 2, 0 for none")
        if not 0 < self.repetition_penalty < float("inf"):
            raise BadInput(f"repetition_penalty is {self.repetition_penalty}; give more than 0, 1 for none")
        if not all(-100 <= bias <= 100 for _, bias in self.logit_bias):
            raise BadInput("a value of logit_bias is not in -100 to 100")
        if not all(_is_count(token) for token in (*(token for token, _ in self.logit_bias), *self.stop_token_ids)):
            raise BadInput("logit_bias and stop_token_ids name tokens by their ids: give whole numbers of 0 or more")
        if not _is_count(self.min_tokens) or self.min_tokens > self.max_new_tokens:
            raise BadInput(
                f"min_tokens is {self.min_tokens}; give a whole number from 0 to the most tokens that the answer may "
                f"have, {self.max_new_tokens}"
            )
        if self.logprobs is not None and not (_is_count(self.logprobs) and self.logprobs <= MOST_LOGPROBS):
            raise BadInput(f"logprobs is {self.logprobs}; give how many to tell of each place, 0 to {MOST_LOGPROBS}")
        if self.grammar is not None and (self.min_tokens or self.ignore_eos):
            raise BadInput("an answer of a given form ends where the form does: leave out min_tokens and ignore_eos")

    def several(self, n: int) -> list["Sampling"]:
        """Return the sampling of each of ``n`` answers to one prompt: a seed goes up by one from answer to answer."""
        if n == 1 or self.seed is None:
            return [self] * n
        return [replace(self, seed=(self.seed + i) % 2**63) for i in range(n)]

    @property
    def takes_logits_as_they_are(self) -> bool:
        """Whether nothing is to be done to logits before a token is drawn."""
        given = (self.frequency_penalty, self.presence_penalty, self.logit_bias, self.min_tokens)
        return not any(given) and self.repetition_penalty == 1 and self.grammar is None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
