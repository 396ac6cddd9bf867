"""What a prompt may be: ids of the vocabulary, as many as the context takes, under one rotation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.policy import Policy, Sampling
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.prompt import Ids, Prompt


@dataclass(frozen=True)
class PromptLimits:
    """context_length, vocabulary: in tokens. model: its name, for messages."""

    model: str
    cache_spec: CacheSpec
    context_length: int
    vocabulary: int

    def check_prompt(self, prompt: Prompt, policy: Policy, namespace: str) -> None:
        """Raise BadInput for ids outside the vocabulary, ContextTooLong for more tokens than
        the model or the policy takes."""
        for part in prompt.parts:
            self.check_ids(part.ids, "the prompt", namespace)
        self.check_ids(policy.isolation_prefix, "the isolation prefix", namespace)
        self.check_length(prompt.n_tokens + 1, "the prompt and one token of answer")
        self.check_rotation(prompt.n_tokens, policy, "the prompt")

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise BadInput where it names tokens that are none of the model's."""
        for name, ids in (
            ("logit_bias", [token for token, _ in sampling.logit_bias]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if ids and max(ids) >= self.vocabulary:
                raise BadInput(
                    f"{name} names token {max(ids)}, but the model's tokens are 0 to {self.vocabulary - 1}: give ids "
                    "of its own tokenizer"
                )

    def check_ids(self, ids: Sequence[int], what: str, namespace: str) -> None:
        """Raise BadInput where one is none of the model's."""
        if not ids:
            return
        are_whole, least, greatest = _extremes(namespace, tuple(ids))
        if not are_whole or least < 0 or greatest >= self.vocabulary:
            raise BadInput(
                f"{what} has token ids outside the model's vocabulary of {self.vocabulary}: "
                "tokenize with the engine's own format"
            )

    def check_length(self, n_tokens: int, what: str) -> None:
        """Raise ContextTooLong for more tokens than the model's context."""
        if n_tokens > self.context_length:
            raise ContextTooLong(
                f"{what} takes {n_tokens} tokens, but {self.model} has a context of {self.context_length}. "
                "Use fewer or shorter documents, or a shorter question"
            )

    def check_rotation(self, n_tokens: int, policy: Policy, what: str) -> None:
        """Raise ContextTooLong where reuse would need keys of two rotations."""
        if policy.mode == "hypic" and self.cache_spec.switches(n_tokens):
            raise ContextTooLong(
                f"{what} takes {n_tokens} tokens; beyond {self.cache_spec.switch_at} this model rotates all keys by "
                "other frequencies, so cached segments do not hold. Ask with --mode full, or with fewer or shorter "
                "documents"
            )

    def answer_tokens(self, n_prompt: int, policy: Policy, max_new_tokens: int) -> int:
        """Return how many tokens may be drawn after a prompt of so many."""
        limit = min(max_new_tokens, self.context_length - n_prompt)
        if policy.mode == "hypic" and self.cache_spec.switch_at is not None:
            limit = min(limit, self.cache_spec.switch_at - n_prompt + 1)  # the last drawn token is never run
        return limit


@lru_cache(maxsize=512)  # documents come again and again, and a long prompt takes a millisecond
def _extremes(namespace: str, ids: Ids) -> tuple[bool, int, int]:
    """Return whether all are whole numbers, the least and the greatest. namespace: so that the time that it takes tells
    no tenant what another has sent."""
    are_whole = all(issubclass(kind, Integral) for kind in set(map(type, ids)))
    return (True, min(ids), max(ids)) if are_whole else (False, 0, 0)
