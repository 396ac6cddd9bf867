"""Documents to chunks, measured in the model's own tokens."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.node_parser.text.utils import split_by_sentence_tokenizer

from hypic_rag.errors import BadInput

DEFAULT_CHUNK_TOKENS = 512
MIN_CHUNK_TOKENS = 64

# As it stands, without LlamaIndex's instrumentation around it, which drops every exception that comes while it takes
# note of a call: also a KeyboardInterrupt, and the ingestion would go on.
_split_text: Callable[[SentenceSplitter, str], list[str]] = inspect.unwrap(SentenceSplitter.split_text)


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
    """Split a text into chunks whose rendered segment (title, text and what the format puts
    around) has at most ``max_tokens``.

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
        for piece in _split_text(splitter, text)
        for part in _fitting(piece, lambda part: len(format.document(part, title)), max_tokens)
    ]
    return [Chunk(title, piece, ordinal) for ordinal, piece in enumerate(filter(None, pieces))]


def check_sizes(max_tokens: int, overlap_tokens: int, context_length: int | None = None) -> None:
    """Raise BadInput where no chunk could be made, or where one would fill the model's context alone."""
    if context_length is not None and max_tokens > context_length // 2:
        raise BadInput(
            f"chunks of {max_tokens} tokens leave too little of the model's context of {context_length} for a question "
            f"and an answer: use --chunk-tokens {context_length // 2} or fewer (512 is usual)"
        )
    if max_tokens < MIN_CHUNK_TOKENS:
        raise BadInput(f"chunks of {max_tokens} tokens are too small: use at least {MIN_CHUNK_TOKENS}")
    if not 0 <= overlap_tokens <= max_tokens // 2:
        raise BadInput(
            f"an overlap of {overlap_tokens} tokens does not go with chunks of {max_tokens}: use 0 to {max_tokens // 2}"
        )


def _counter(format: SegmentFormat) -> Callable[[str], range]:
    """Make what the splitter takes for a tokenizer: it takes the length of what that returns, nothing else."""
    return lambda text: range(format.count(text))


def _sentences(text: str, format: SegmentFormat, max_tokens: int) -> list[str]:
    """Split into sentences; one that is longer than a chunk (a table, base64, a text
    without stops) is cut after a blank.

    The splitter would cut it into words or characters and add up the tokens of each alone: slow, and too
    many.
    """
    pieces: list[str] = []
    for sentence in split_by_sentence_tokenizer()(text):
        # A token is at least a byte. A few tokens less than there is room for, or what the format puts around
        # would have the part cut again.
        if len(sentence.encode()) > max_tokens:
            pieces += _fitting(sentence, format.count, max_tokens - 4)
        else:
            pieces.append(sentence)
    return pieces


def _fitting(text: str, count: Callable[[str], int], max_tokens: int) -> Iterator[str]:
    """Yield the text in parts of at most ``max_tokens``, nearly filled; cut after a blank where one is near."""
    size = 4 * max_tokens  # characters looked at, so that a long text is not measured again for every part
    while text:
        cut = min(size, len(text))
        n_tokens = count(text[:cut])
        if n_tokens <= max_tokens and cut < len(text):
            size *= 2
            continue
        while n_tokens > max_tokens and cut > 1:
            cut = max(1, min(cut - 1, int(0.98 * cut * max_tokens / n_tokens)))
            n_tokens = count(text[:cut])
        if cut < len(text):
            blank = max(text.rfind(" ", 0, cut), text.rfind("\n", 0, cut))
            cut = blank if blank > cut // 2 else cut
        yield text[:cut]
        text = text[cut:]


def _shortened(title: str, format: SegmentFormat, max_tokens: int) -> str:
    if format.count(title) <= max_tokens:
        return title
    return next(_fitting(title, format.count, max_tokens - 1)).rstrip() + "…"
