"""Answers of a given form: which tokens may come next, by a JSON schema, a regular expression or a list of choices."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from torch import Tensor

from hypic_rag.engine.token_bytes import TokenBytes
from hypic_rag.errors import BadInput, GrammarTooComplex

Form = Literal["json_schema", "regex", "choice"]
LONGEST = 100_000  # characters of a form
JSON_OPTIONS: Any = {"whitespace_pattern": r"[ \n\r\t]{0,24}"}  # a small model may else write nothing but blanks


@dataclass(frozen=True)
class Grammar:
    """What an answer has to be like. text: a schema as JSON, a regular expression, or the choices as a JSON list."""

    form: Form
    text: str

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise BadInput(f"the form of an answer is {self.form!r}; it can be one of {', '.join(get_args(Form))}")
        if len(self.text) > LONGEST:
            raise BadInput(f"the {self.form} has {len(self.text):,} characters; give at most {LONGEST:,}")

    @classmethod
    def json_schema(cls, schema: dict[str, Any]) -> "Grammar":
        """Raise BadInput for one that is too deep."""
        try:
            return cls("json_schema", json.dumps(schema))
        except RecursionError:
            raise BadInput("the json_schema is nested too deep: give one with fewer levels") from None

    @classmethod
    def choice(cls, choices: list[str]) -> "Grammar":
        return cls("choice", json.dumps(choices))


class GrammarMatcher:
    """What was drawn so far of one answer, and what may come next."""

    def __init__(self, matcher: LLMatcher, n_tokens: int):
        """n_tokens: of the vocabulary."""
        self._matcher, self._n_tokens = matcher, n_tokens

    def copy(self) -> "GrammarMatcher":
        return GrammarMatcher(self._matcher.deep_copy(), self._n_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole, and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> Tensor:
        """Return (vocabulary,) bool on the CPU. Raises GrammarTooComplex."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self._n_tokens].astype(bool))

    def take(self, token: int) -> None:
        """Note a drawn token, one that was allowed. Raises GrammarTooComplex."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarTooComplex(
                f"the form that the answer should have cannot be followed any further: {self._told}. Ask with a "
                "simpler schema or expression"
            )

    @property
    def _told(self) -> str:
        return next(iter(self._matcher.get_error().splitlines()), "of no known reason")[:300]


class GrammarCompiler:
    """Makes matchers for one tokenizer.

    tokenizer: of transformers. n_tokens: of the vocabulary. ends: tokens that may come once an answer is whole.
    """

    def __init__(self, tokenizer: Any, n_tokens: int, ends: frozenset[int]):
        self._tokenizer, self._n_tokens, self._ends = tokenizer, n_tokens, ends
        # By namespace, so that the time that it takes tells no tenant what another has sent.
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def matcher(self, grammar: Grammar, namespace: str) -> GrammarMatcher:
        """Return a matcher at the beginning. Raises BadInput for a form that is none, or that cannot be held to."""
        return self._compiled(namespace, grammar).copy()

    @cached_property
    def _of_tokens(self) -> LLTokenizer:
        """The vocabulary as a tree of bytes; it takes half a second, so that it is made when it is first wanted."""
        return LLTokenizer(TokenizerWrapper(_Vocabulary(self._tokenizer, self._n_tokens, self._ends)),
                           eos_token=sorted(self._ends))  # fmt: skip

    def _compile(self, namespace: str, grammar: Grammar) -> GrammarMatcher:
        tokens = self._of_tokens
        try:
            written = _written(grammar)
        except ValueError as error:
            raise BadInput(f"the {grammar.form} cannot be read: {error}") from error
        matcher = LLMatcher(tokens, written, log_level=0)
        if matcher.is_error():
            told = " ".join(matcher.get_error().split())[:300]
            raise BadInput(f"an answer cannot be held to this {grammar.form}: {told}. Ask with a simpler one")
        return GrammarMatcher(matcher, self._n_tokens)


class _Vocabulary:
    """What llguidance asks of a tokenizer. Of its own reading of a tokenizer's file nothing is used: that took this
    project's default model, whose decoder has several steps, for one without byte-level pieces."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, n_tokens: int, ends: frozenset[int]):
        self._tokenizer = tokenizer
        of_tokens, n_known = TokenBytes(tokenizer), min(n_tokens, len(tokenizer))
        texts = of_tokens.texts(range(n_known))
        found = [of_tokens.of(token, text) for token, text in enumerate(texts)]
        found += [None] * (n_tokens - n_known)
        self.eos_token_id = min(ends)
        self.special_token_ids = [token for token, of_one in enumerate(found) if not of_one or token in ends]
        special = {*self.special_token_ids}
        self.tokens = [b"<%d>" % i if i in special or not of_one else of_one for i, of_one in enumerate(found)]

    def __call__(self, text: str) -> list[int]:
        """Tokenize a text; of bytes it can do nothing."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _written(grammar: Grammar) -> str:
    """Write it as llguidance reads it. Raises ValueError."""
    if grammar.form == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.form == "json_schema":
        return LLMatcher.grammar_from_json_schema(grammar.text, overrides=JSON_OPTIONS)
    choices = json.loads(grammar.text)
    if not choices or not all(choices):
        raise ValueError("give at least one choice, and none that is empty")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
