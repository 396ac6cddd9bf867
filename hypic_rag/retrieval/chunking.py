"""Documents to chunks that read well alone, measured in the model's own tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from llama_index.core.node_parser.text.utils import split_by_sentence_tokenizer

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.blocks import Unit, units_of
from hypic_rag.retrieval.readers.pages import Pages, label_of, n_solid

VERSION = 2
"""Raised whenever a text is cut otherwise: what a former version cut is cut anew when it is next ingested."""
DEFAULT_CHUNK_TOKENS = 128  # the default model answers best from these: hypic-eval plain-use
MIN_CHUNK_TOKENS = 64
HEADING_SHARE = 4  # headings that are said again take at most this part of a chunk


class SegmentFormat(Protocol):
    """The part of PromptFormat that chunking needs."""

    def document(self, text: str, title: str = "") -> tuple[int, ...]: ...
    def count(self, text: str) -> int: ...


@dataclass(frozen=True)
class Chunk:
    """A piece of a document, in the form in which the model will read it. page_label: of the page or pages that it is
    on, where the document has any."""

    title: str
    text: str
    ordinal: int
    page_label: str = ""


def split_document(
    title: str,
    text: str,
    format: SegmentFormat,
    max_tokens: int = DEFAULT_CHUNK_TOKENS,
    overlap_tokens: int = 0,
    pages: Pages = (),
) -> list[Chunk]:
    """Split a text into chunks whose rendered segment (title, text and what the format puts
    around) has at most ``max_tokens``, of about equal sizes.

    Paragraphs, lists and tables are kept whole where they fit, else lines and sentences. A heading goes with what
    follows it, and is said again where a chunk begins below it; so is the header of a table that is cut. A title that
    takes more than a quarter of a chunk is shortened. A text of blanks has no chunks. pages: where the text's begin.
    Raises BadInput for sizes that cannot work.
    """
    check_sizes(max_tokens, overlap_tokens)
    title = _shortened(" ".join(title.split()), format, max_tokens // 4)
    room = max_tokens - len(format.document("", title))

    def size(part: str) -> int:
        return len(format.document(part, title))

    # A few tokens less than there is room for: tokens of a whole are not the sum of the tokens of its parts.
    units = [*units_of(text, format.count, lambda part: fitting(part, format.count, room - 4), room - 4)]
    pieces = [
        (part.strip(), label_of(pages, start, end))
        for whole, start, end in _packed(
            units, format.count, room, overlap_tokens, title, lambda part: size(part) <= max_tokens
        )
        for part in fitting(whole, size, max_tokens)
    ]
    with_text = [piece for piece in pieces if piece[0]]
    return [Chunk(title, text, ordinal, label) for ordinal, (text, label) in enumerate(with_text)]


def check_sizes(max_tokens: int, overlap_tokens: int, context_length: int | None = None) -> None:
    """Raise BadInput where no chunk could be made, or where one would fill the model's context alone."""
    if context_length is not None and max_tokens > context_length // 2:
        raise BadInput(
            f"chunks of {max_tokens} tokens leave too little of the model's context of {context_length} for a question "
            f"and an answer: use --chunk-tokens {context_length // 2} or fewer ({DEFAULT_CHUNK_TOKENS} is usual)"
        )
    if max_tokens < MIN_CHUNK_TOKENS:
        raise BadInput(f"chunks of {max_tokens} tokens are too small: use at least {MIN_CHUNK_TOKENS}")
    if not 0 <= overlap_tokens <= max_tokens // 2:
        raise BadInput(
            f"an overlap of {overlap_tokens} tokens does not go with chunks of {max_tokens}: use 0 to {max_tokens // 2}"
        )


def fitting(text: str, count: Callable[[str], int], max_tokens: int) -> Iterator[str]:
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


def _packed(
    units: Sequence[Unit],
    count: Callable[[str], int],
    room: int,
    overlap_tokens: int,
    title: str,
    fits: Callable[[str], bool],
) -> Iterator[tuple[str, int, int]]:
    """Yield the units' texts, so many together as have ``room`` tokens, and from where to where in the whole text (as
    ``Unit.end``); what is left is shared out evenly, so that no chunk is a scrap."""
    sizes = [count(unit.before + unit.text) for unit in units]
    left = sum(sizes)
    start = 0
    before = ""
    while start < len(units):
        opening = _again(units[start], title) if not before else ""
        opening = opening if count(opening) <= room // HEADING_SHARE else ""
        overlap = _end_of(before, count, overlap_tokens)
        opening += overlap
        taken = count(opening) if opening else 0
        # Near the end chunks are counted, so that the last is no scrap; before it they are about full anyway.
        n_chunks = (
            _n_filled(units[start:], sizes[start:], room - taken)
            if left < 3 * room
            else math.ceil((left + taken) / room)
        )
        share = (left + taken) / n_chunks
        end = start
        while end < len(units) and (end == start or (taken + sizes[end] <= room and taken + sizes[end] / 2 <= share)):
            taken += sizes[end]
            end += 1
        before = opening + _joined(units[start:end])
        while end > start + 1 and (not fits(before.strip()) or (end < len(units) and units[end - 1].is_heading)):
            end -= 1
            before = opening + _joined(units[start:end])
        begun = units[start - 1].end if start else 0
        yield before, max(0, begun - n_solid(overlap)), units[end - 1].end
        if not overlap_tokens:
            before = ""
        left -= sum(sizes[start:end])
        start = end


def _n_filled(units: Sequence[Unit], sizes: Sequence[int], room: int) -> int:
    """Return how many chunks there are where each is filled. A heading goes with what follows it."""
    n, taken, held = 1, 0, 0
    for unit, size in zip(units, sizes, strict=True):
        held += size
        if unit.is_heading:
            continue
        if taken and taken + held > room:
            n, taken = n + 1, 0
        taken, held = taken + held, 0
    return n


def _joined(units: Sequence[Unit]) -> str:
    return "".join(unit.before * (i > 0) + unit.text for i, unit in enumerate(units))


def _again(unit: Unit, title: str) -> str:
    """Return the headings above a unit that are not the title already, to be said again before it."""
    said = [heading for heading in unit.headings if heading.lstrip("# ").rstrip("# ") != title]
    return "".join(f"{heading}\n\n" for heading in said)


def _end_of(text: str, count: Callable[[str], int], max_tokens: int) -> str:
    """Return the last sentences of a text, of at most ``max_tokens`` together."""
    if not (text and max_tokens):
        return ""
    kept = ""
    for sentence in reversed(split_by_sentence_tokenizer()(text)):
        if count(sentence + kept) > max_tokens:
            break
        kept = sentence + kept
    return f"{kept.strip()} " if kept.strip() else ""


def _shortened(title: str, format: SegmentFormat, max_tokens: int) -> str:
    if format.count(title) <= max_tokens:
        return title
    return next(fitting(title, format.count, max_tokens - 1)).rstrip() + "…"
