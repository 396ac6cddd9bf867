"""Documents to chunks, measured in the model's own tokens."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.node_parser.text.utils import split_by_sentence_tokenizer

from hypic_rag.errors import BadInput

DEFAULT_CHUNK_TOKENS = 512
MIN_CHUNK_TOKENS = 64
UNBROKEN = re.compile(r"([^\s,.;。？！]+)")  # what neither the splitter's sentences nor its phrases divide


class SegmentFormat(Protocol):
    """The part of PromptFormat that chunking needs."""

    def document(self, text: str, title: str = "") -> tuple[int, ...]: ...
    def count(self, text: str) -> int: ...


@dataclass(frozen=True)
class Chunk:
    """A piece of a document, in the form in which the model will read it."""

    title: str
    text: str
    ordinal: int


def split_document(
    title: str,
    text: str,
    format: SegmentFormat,
    max_tokens: int = DEFAULT_CHUNK_TOKENS,
    overlap_tokens: int = 0,
) -> list[Chunk]:
    """Chunks whose rendered segment (title, text and what the format puts around) has at most ``max_tokens``.

    Sentences are kept whole where they fit. A title that takes more than a quarter of a chunk is shortened.
    A text of blanks has no chunks. Raises BadInput for sizes that cannot work.
    """
    check_sizes(max_tokens, overlap_tokens)
    title = _shortened(" ".join(title.split()), format, max_tokens // 4)
    for_text = max_tokens - len(format.document("", title))
    splitter = SentenceSplitter(
        chunk_size=for_text,
        chunk_overlap=min(overlap_tokens, for_text - 1),
        tokenizer=_counter(format),
        chunking_tokenizer_fn=lambda text: _sentences(text, format, for_text),
    )
    # Tokens of a whole are not the sum of the tokens of its parts, so what the splitter made is measured.
    pieces = [
        part.strip()
        for piece in splitter.split_text(text)
        for part in _fitting(
            piece, lambda part: len(format.document(part.strip(), title)) <= max_tokens, max_tokens
        )
    ]
    return [Chunk(title, piece, ordinal) for ordinal, piece in enumerate(filter(None, pieces))]


def check_sizes(max_tokens: int, overlap_tokens: int) -> None:
    """Raises BadInput where no chunk could be made."""
    if max_tokens < MIN_CHUNK_TOKENS:
        raise BadInput(f"chunks of {max_tokens} tokens are too small: use at least {MIN_CHUNK_TOKENS}")
    if not 0 <= overlap_tokens <= max_tokens // 2:
        raise BadInput(
            f"an overlap of {overlap_tokens} tokens does not go with chunks of {max_tokens}: "
            f"use 0 to {max_tokens // 2}"
        )


def _counter(format: SegmentFormat) -> Callable[[str], range]:
    """The splitter takes the length of what its tokenizer returns, nothing else."""
    return lambda text: range(format.count(text))


def _sentences(text: str, format: SegmentFormat, max_tokens: int) -> list[str]:
    """Sentences; a run of characters that is longer than a chunk (base64, digits) is cut here.

    The splitter would count the tokens of each of its characters by itself: slow, and far too many.
    """
    pieces = []
    for sentence in split_by_sentence_tokenizer()(text):
        runs = UNBROKEN.split(sentence)
        if any(len(run) > max_tokens // 8 and format.count(run) > max_tokens for run in runs):
            pieces += [
                part
                for run in runs
                for part in _fitting(run, lambda part: format.count(part) <= max_tokens, max_tokens)
            ]
        else:
            pieces.append(sentence)
    return [piece for piece in pieces if piece]


def _fitting(text: str, fits: Callable[[str], bool], max_tokens: int) -> Iterator[str]:
    """The text in as few parts that fit as there need to be; cut after a blank where one is near."""
    while text:
        window = text[: 16 * max_tokens]  # longer parts seldom fit, and are slow to measure
        cut = len(window) if fits(window) else _longest_fitting(window, fits)
        yield text[:cut]
        text = text[cut:]


def _longest_fitting(text: str, fits: Callable[[str], bool]) -> int:
    """How long the longest beginning that fits is, up to its last blank where one is near; at least 1."""
    low, high = 1, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle]) else (low, middle - 1)
    blank = max(text.rfind(" ", 0, low + 1), text.rfind("\n", 0, low + 1))
    return blank if blank > low // 2 else low


def _shortened(title: str, format: SegmentFormat, max_tokens: int) -> str:
    if format.count(title) <= max_tokens:
        return title
    return title[: _longest_fitting(title, lambda part: format.count(part) < max_tokens)].rstrip() + "…"
