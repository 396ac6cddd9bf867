"""What of a text belongs together: paragraphs, lists and tables whole where they fit, else lines and sentences."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from llama_index.core.node_parser.text.utils import split_by_sentence_tokenizer

from hypic_rag.retrieval.readers.markup import FENCE, HEADING
from hypic_rag.retrieval.readers.pages import n_solid

TABLE_RULE = re.compile(r"\s*\|?(\s*:?-{2,}:?\s*\|)+\s*(:?-{2,}:?)?\s*")  # below the header of a Markdown table
ENDS = re.compile(r"[.:;!?…][\"')\]”’]*\s*$")  # of a line, where a sentence or a remark is over
ITEM = re.compile(r"\s*([-*+•]|\d+[.)])\s")  # of a list
NAME = re.compile(r"[^:\n]{1,40}: ")  # of a row's first cell
SHORT = 0.75  # of the longest line: a line so much shorter ends a paragraph or is a row of its own


@dataclass(frozen=True)
class Unit:
    """A piece of text that is not cut. before: what stands between it and the unit before, in one chunk. headings:
    those above it, the outermost first, as they are written. is_heading: it is one, and belongs to what follows. end:
    characters of the whole text, but blanks, up to its own end."""

    text: str
    before: str = "\n\n"
    headings: tuple[str, ...] = ()
    is_heading: bool = False
    end: int = 0


def units_of(
    text: str, count: Callable[[str], int], cut: Callable[[str], Iterable[str]], max_tokens: int
) -> Iterator[Unit]:
    """Yield the units of a text in their order, each of at most ``max_tokens``; together they are all of it but blanks,
    and the headers of tables, which are said again.

    count: tokens of a text. cut: a text that has no place to be cut, into parts of at most ``max_tokens``.
    """
    end = 0
    for block in _blocks(text):
        at, end = end, end + n_solid(block.text)
        header = table_header(block.text)
        if _is_within(block.text, count, max_tokens):
            yield replace(block, end=end)
        elif header and count(header) <= max_tokens // 2:
            rows = block.text[len(header) + 1 :].split("\n")
            at += n_solid(header)
            for part in _together(rows, header, count, max_tokens):
                at += n_solid(part)
                yield replace(block, text=f"{header}\n{part}", end=at)
        else:
            before = block.before
            for run in _runs(block.text):
                for piece in _pieces(run, count, cut, max_tokens):
                    at += n_solid(piece)
                    yield replace(block, text=piece, before=before, end=at)
                    before = ""


def table_header(block: str) -> str:
    """Return the header and the rule with which a Markdown table begins; "" of what is none."""
    first, _, rest = block.partition("\n")
    rule = rest.partition("\n")[0]
    return f"{first}\n{rule}" if "|" in first and TABLE_RULE.fullmatch(rule) else ""


def _blocks(text: str) -> Iterator[Unit]:
    """Yield lines without a blank one between, whole code blocks, and headings."""
    above: list[tuple[int, str]] = []
    lines: list[str] = []
    fence = ""

    def block() -> Iterator[Unit]:
        if lines:
            yield Unit("\n".join(lines), headings=tuple(heading for _, heading in above))
            lines.clear()

    for line in text.split("\n"):
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif not fence and HEADING.fullmatch(line):
            yield from block()
            heading = line.strip()
            level = len(heading) - len(heading.lstrip("#"))
            above = [(other, told) for other, told in above if other < level]
            yield Unit(heading, headings=tuple(told for _, told in above), is_heading=True)
            above.append((level, heading))
            continue
        if line.strip() or fence:
            lines.append(line)
        else:
            yield from block()
    yield from block()


def _runs(block: str) -> Iterator[str]:
    """Yield lines with their ends, those together that one sentence may run through."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", block)
    longest = max(map(len, lines))
    run = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        run += line
        name = NAME.match(line)
        is_row = ITEM.match(following) or (name and following.startswith(name[0]))
        if is_row or ENDS.search(line) or len(line) < SHORT * longest:
            yield run
            run = ""
    if run:
        yield run


def _pieces(
    text: str, count: Callable[[str], int], cut: Callable[[str], Iterable[str]], max_tokens: int
) -> Iterator[str]:
    """Yield a text whole, or its sentences; one that is longer than a chunk (base64, a text without stops) is cut."""
    if _is_within(text, count, max_tokens):
        yield text
        return
    for sentence in split_by_sentence_tokenizer()(text):
        if _is_within(sentence, count, max_tokens):
            yield sentence
        else:
            yield from cut(sentence)


def _together(rows: Iterable[str], header: str, count: Callable[[str], int], max_tokens: int) -> Iterator[str]:
    """Yield as many rows together as fit below the header, at least one."""
    whole: str | None = None
    for row in rows:
        if whole is not None and count(f"{header}\n{whole}\n{row}") > max_tokens:
            yield whole
            whole = None
        whole = row if whole is None else f"{whole}\n{row}"
    if whole is not None:
        yield whole


def _is_within(text: str, count: Callable[[str], int], max_tokens: int) -> bool:
    # A token is at least a byte.
    return len(text.encode()) <= max_tokens or count(text) <= max_tokens
