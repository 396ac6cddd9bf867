"""From token ids to text, as soon as it is certain: never half a character, never a stop string."""

from collections.abc import Sequence
from typing import Any


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text without control tokens, and with its spaces as they are."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Detokenizer:
    """Hold back an incomplete character (its bytes may be spread over tokens) and the beginning of a stop string.

    Not ``tokenizers.DecodeStream``, which knows no Python tokenizer and drops what is incomplete at the end.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()):
        self.tokenizer = tokenizer
        self.stop = stop
        self.text = ""
        self.stopped = False
        self._ids: list[int] = []
        self._prefix = self._read = 0  # ids before _read are text already; those from _prefix give its context
        self._pending = ""

    def push(self, token: int) -> str:
        """Add a token and return the text that became certain with it."""
        self._ids.append(token)
        new = self._new_text()
        if new.endswith("\ufffd"):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return self._emit(new)

    def finish(self) -> str:
        """Return what was held back, at the end of the answer."""
        return self._emit(self._new_text(), last=True)

    def _new_text(self) -> str:
        if self._read == len(self._ids):
            return ""
        before = self._decode(self._ids[self._prefix : self._read])
        return self._decode(self._ids[self._prefix :])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return decoded(self.tokenizer, ids) if ids else ""

    def _emit(self, new: str, last: bool = False) -> str:
        if self.stopped:
            return ""
        self._pending += new
        found = [at for at in (self._pending.find(text) for text in self.stop) if at >= 0]
        if found:
            self.stopped, certain = True, min(found)
        elif last:
            certain = len(self._pending)
        else:
            certain = len(self._pending) - max((_overlap(self._pending, text) for text in self.stop), default=0)
        out, self._pending = self._pending[:certain], self._pending[certain:]
        self.text += out
        return out


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
