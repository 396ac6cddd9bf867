"""Log-probabilities of an answer's tokens, as OpenAI's two formats have them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hypic_rag.engine.outputs import TokenLogprobs
from hypic_rag.engine.token_bytes import TokenBytes


class TokenTexts:
    """The text and the bytes of single tokens, in the midst of a text."""

    def __init__(self, tokenizer: Any):
        self._tokenizer, self._bytes = tokenizer, TokenBytes(tokenizer)
        self.of = lru_cache(maxsize=65536)(self._of)

    def _of(self, token: int) -> tuple[str, list[int] | None]:
        """Return a token's text, and its bytes where they are known. A control token's is its name."""
        [text] = self._bytes.texts([token])
        text = text or str(self._tokenizer.convert_ids_to_tokens(token))
        found = self._bytes.of(token, text)
        return text, None if found is None else list(found)


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
