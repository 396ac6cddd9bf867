"""Log-probabilities of an answer's tokens, as OpenAI's two formats have them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from hypic_rag.engine.detokenizer import decoded
from hypic_rag.engine.outputs import TokenLogprobs


class TokenTexts:
    """The text and the bytes of single tokens, in the midst of a text."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.of = lru_cache(maxsize=65536)(self._of)
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]  # some leave out a space that comes first
        self._before_text = decoded(tokenizer, self._before)

    def _of(self, token: int) -> tuple[str, list[int] | None]:
        """Return a token's text, and its bytes where they are known. A control token's is its name."""
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        text = decoded(self._tokenizer, [*self._before, token]).removeprefix(self._before_text)
        if text and "\ufffd" not in text:
            return text, list(text.encode("utf-8", "replace"))
        if text and (part := _bytes_of(piece)) is not None:  # a part of a character
            return text, list(part)
        return (text, None) if text else (piece, list(piece.encode("utf-8", "replace")))


def in_chat(texts: TokenTexts, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text, of_text = texts.of(token)
        return {"token": text, "logprob": logprob, "bytes": of_text}

    content = [
        {**one(place.token, place.logprob), "top_logprobs": [one(*pair) for pair in place.top]} for place in told
    ]
    return {"content": content, "refusal": None}


def in_text(texts: TokenTexts, told: Sequence[TokenLogprobs], offset: int = 0) -> dict[str, Any]:
    """offset: in characters, of the first of these tokens in the answer."""
    tokens = [texts.of(place.token)[0] for place in told]
    offsets = [offset]
    for text in tokens:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": tokens,
        "token_logprobs": [place.logprob for place in told],
        "top_logprobs": [
            {texts.of(token)[0]: logprob for token, logprob in (*reversed(place.top), (place.token, place.logprob))}
            for place in told
        ],
        "text_offset": offsets[:-1],
    }


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Invert the byte-level alphabet: printable bytes stand for themselves, the others, in order, for what follows."""
    alphabet = ByteLevel.alphabet()
    known = {character: ord(character) for character in alphabet if ord(character) < 256}
    others = sorted({*range(256)} - {*known.values()})
    return known | dict(zip(sorted({*alphabet} - {*known}), others, strict=True))


def _bytes_of(piece: str) -> bytes | None:
    """Return the bytes that a piece of a vocabulary stands for: byte-level, or SentencePiece's ``<0xE2>``."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    table = _byte_of_character()
    return bytes(table[character] for character in piece) if {*piece} <= table.keys() else None
