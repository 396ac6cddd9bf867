"""The bytes that single tokens stand for, as the tokenizer decodes them in the midst of a text."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from hypic_rag.engine.detokenizer import decoded


class TokenBytes:
    """Asks the decoder, not the vocabulary: one may be byte-level where the other's type does not say so."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]  # some leave out a space that comes first
        self._before_text = decoded(tokenizer, self._before)

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts, "" of control tokens; what is a part of a character has U+FFFD in it."""
        runs = [[*self._before, token] for token in tokens]
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None and hasattr(backend, "decode_batch"):
            found = backend.decode_batch(runs, skip_special_tokens=True)
        else:
            found = [decoded(self._tokenizer, run) for run in runs]
        return [text.removeprefix(self._before_text) for text in found]

    def of(self, token: int, text: str) -> bytes | None:
        """Return a token's bytes; None where they are not known. text: its own."""
        if "\ufffd" not in text:
            return text.encode("utf-8", "replace")
        return _of_piece(str(self._tokenizer.convert_ids_to_tokens(token)))  # a part of a character


def _of_piece(piece: str) -> bytes | None:
    """Return the bytes that a piece of a vocabulary stands for: byte-level, or SentencePiece's ``<0xE2>``."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    table = _byte_of_character()
    return bytes(table[character] for character in piece) if {*piece} <= table.keys() else None


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Invert the byte-level alphabet: printable bytes stand for themselves, the others, in order, for what follows."""
    alphabet = ByteLevel.alphabet()
    known = {character: ord(character) for character in alphabet if ord(character) < 256}
    others = sorted({*range(256)} - {*known.values()})
    return known | dict(zip(sorted({*alphabet} - {*known}), others, strict=True))
