"""Text to token ids of which none is a control token, whatever the text says."""

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

Ids = tuple[int, ...]


class PlainText:
    """Encodes what people wrote.

    control_ids: token -> id of those that a chat template alone may write.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        # Every special token is one, and what is added beside (Qwen's <think>), but for runs of spaces and single
        # characters, which extend a vocabulary.
        self.control_ids: dict[str, int] = {
            added.content: i
            for i, added in tokenizer.added_tokens_decoder.items()
            if added.content and (added.special or (added.content.strip() and len(added.content) > 1))
        }
        self._forbidden = frozenset(self.control_ids.values())

    def encode(self, text: str) -> Ids:
        """Tokenize as the tokenizer does, but for control tokens: those are spelled out as other text is.

        What is no character (a lone surrogate, from bytes that were not UTF-8) becomes U+FFFD, and so does a character
        that nothing but a control token can write.
        """
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        ids = self._called(text)
        return tuple(ids) if self._forbidden.isdisjoint(ids) else tuple(self._spelled(text))

    def _called(self, text: str, **options: bool) -> list[int]:
        """Return what calling the tokenizer gives, without its detours where there is nothing to pad or to cut: those
        take 0.15 ms a text, ten times the work itself."""
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        if options or fast is None or fast.truncation or fast.padding or fast.encode_special_tokens:
            found: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"]
            return found
        return list(fast.encode(text, add_special_tokens=False).ids)

    def _spelled(self, text: str) -> list[int]:
        """Tokenize by what knows no control tokens; where one comes out all the same, text is cut until it does not."""
        encode, unknown = self._without_control
        ids = encode(text)
        if (self._forbidden - {unknown}).isdisjoint(ids):
            return ids
        if len(text) > 1:
            half = len(text) // 2
            return self._spelled(text[:half]) + self._spelled(text[half:])
        return self._spelled("\ufffd") if text != "\ufffd" else []

    @cached_property
    def _without_control(self) -> tuple[Callable[[str], list[int]], int | None]:
        """An encoding of texts that do hold control tokens, and the id that stands for unknown text in it.

        Made when the first such text comes: to copy a tokenizer takes 4 microseconds a token of its vocabulary.
        """
        with suppress(Exception):  # a backend with parts in Python cannot be copied
            copy = self._copy()
            unknown = getattr(copy.model, "unk_token", None)
            return lambda text: list(copy.encode(text, add_special_tokens=False).ids), self._harmless(
                copy.token_to_id(unknown) if unknown else getattr(copy.model, "unk_id", None)
            )
        return lambda text: self._called(text, split_special_tokens=True), self._harmless(self.tokenizer.unk_token_id)

    def _harmless(self, unknown: int | None) -> int | None:
        """Return ``unknown`` unless other control tokens share its id: some vocabularies take the end of a
        text for what is unknown, too."""
        named = {name: i for name, i in self.control_ids.items() if i == unknown}
        others = {str(token) for kind, token in self.tokenizer.special_tokens_map.items() if kind != "unk_token"}
        return None if others & {*named} else unknown

    def _copy(self) -> Tokenizer:
        """Copy the backend with names for its control tokens that nobody can write; ids are as they were."""
        whole = json.loads(self.tokenizer.backend_tokenizer.to_str())
        whole["truncation"] = whole["padding"] = None
        model = whole["model"]
        vocabulary = model["vocab"]
        known = set(vocabulary) if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
        unwritable = secrets.token_hex(16)
        # A single character is left: longer tokens are built of it.
        names = {
            content: f"{unwritable}-{i}"
            for content, i in self.control_ids.items()
            if content not in known or len(content) > 1
        }
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(token, token): i for token, i in vocabulary.items()}
        else:
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            prefix = model.get("continuing_subword_prefix") or ""
            model["merges"] = [
                [left, right]
                for left, right in model["merges"]
                if names.keys().isdisjoint((left, right, left + right.removeprefix(prefix)))
            ]
        whole["added_tokens"] = [
            token if token["content"] not in self.control_ids else
            {**token, "content": names[token["content"]], "normalized": False, "single_word": False}
            for token in whole["added_tokens"]
            if token["content"] not in self.control_ids or token["content"] in names
        ]  # fmt: skip
        copy = Tokenizer.from_str(json.dumps(whole))
        for token in whole["added_tokens"]:
            if copy.token_to_id(token["content"]) != token["id"]:
                raise ValueError(f"{token} got another id")
        return copy
