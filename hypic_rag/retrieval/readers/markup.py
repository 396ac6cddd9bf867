"""Titles of Markdown, and the title and readable text of HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hypic_rag.retrieval.readers.tables import is_header, table_text

if TYPE_CHECKING:
    from bs4.element import PageElement, Tag

HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.+?)[ \t]*(?:[ \t]#+[ \t]*)?")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
FENCE = re.compile(r" {0,3}(```|~~~)")
CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
UNREAD = ("script", "style", "noscript", "template", "head")
MENU_ROLES = ("navigation", "banner", "contentinfo", "search", "menu", "menubar")
MENU_NAMES = re.compile(
    r"(?i:(site|page|main|top|primary|mw)?[-_]?(nav|navbar|navigation|menu|sidebar|footer|breadcrumbs?)|sphinxsidebar"
    r"|related|cookie[-_]?(banner|consent|notice)|skip[-_]?link|search[-_]?form)"
)
CELLS = ("td", "th")
BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|dd|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|"
    "header|hr|li|main|nav|ol|p|pre|section|table|tr|ul"
)


def markdown_title(text: str) -> str:
    """Find the first heading outside code fences and front matter, or ""."""
    lines = text.split("\n")
    start = 0
    if lines[0].rstrip() == "---" and "---" in (line.rstrip() for line in lines[1:]):
        start = 2 + [line.rstrip() for line in lines[1:]].index("---")
    fence, before = "", ""
    for line in lines[start:]:
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif not fence:
            heading = HEADING.fullmatch(line)
            if heading:
                return heading[1].strip()
            if before and UNDERLINE.fullmatch(line):
                return before
        before = "" if fence or mark else line.strip()
    return ""


def declared_charset(raw: bytes) -> str | None:
    """Find the encoding that the first 2,048 bytes of an HTML file name, if any."""
    found = CHARSET.search(raw[:2048])
    return found[1].decode("ascii", "replace") if found else None


def html_title_and_text(markup: str, has_header_rows: bool = False) -> tuple[str, str]:
    """Return the title (else the first h1, else "") and the text, one line a block: without scripts and styles, and
    without what leads through a site (menus, its head and foot, what is beside a ``main`` that has most of the text),
    unless nothing else is there.

    has_header_rows: the first row of a table may name its columns without being marked so.

    Headings are written as Markdown's, and the rows of a table with a header as ``table_text`` has them.
    """
    from bs4 import BeautifulSoup

    # An XML declaration and a bare str that looks like a file name would each cause a warning.
    markup = re.sub(r"\A\s*<\?xml[^>]*>", "", markup)
    soup = BeautifulSoup(io.StringIO(markup), "html.parser")
    heading = soup.title or soup.h1
    title = " ".join(heading.get_text().split()) if heading else ""
    text = "".join(_pieces(soup, has_header_rows))
    if len(mains := soup.find_all("main")) == 1:
        main = "".join(_pieces(mains[0], has_header_rows))
        text = main if 2 * len(main) > len(text) else text
    if not text.strip():
        text = "".join(_pieces(soup, has_header_rows, with_menus=True))
    lines = (line.rstrip() for line in text.split("\n"))
    # Leading blanks matter in pre alone; elsewhere at most one is left.
    text = "\n".join(line[1:] if re.match(r" \S", line) else line for line in lines)
    return title, re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _pieces(soup: Tag, has_header_rows: bool, with_menus: bool = False) -> Iterator[str]:
    """Yield the strings of a page in order, a line end around each block. No recursion; the tree stays as it is."""
    from bs4.element import CData, NavigableString, Tag

    waiting: list[tuple[PageElement | str, bool]] = [(soup, False)]
    while waiting:
        node, in_pre = waiting.pop()
        if isinstance(node, Tag):
            if node.name in UNREAD or (not with_menus and _is_menu(node)):
                continue
            if node.name == "table" and (rows := _data_rows(node, has_header_rows)):
                yield f"\n\n{table_text(rows)}\n\n"
                continue
            edge = "\n" if BLOCKS.fullmatch(node.name) else " " if node.name in CELLS else ""
            in_pre = in_pre or node.name == "pre"
            is_heading = node.name in HEADINGS and node.get_text().strip()
            yield f"{edge}{'#' * int(node.name[1])} " if is_heading else edge
            waiting.append((edge, True))
            waiting += [(child, in_pre) for child in reversed(node.contents)]
        elif type(node) in (NavigableString, CData, str):  # not comments, doctypes and such
            yield str(node) if in_pre else re.sub(r"\s+", " ", str(node))


def _is_menu(node: Tag) -> bool:
    """Return whether it leads through a site: by its name or role; the head and foot of a page, not of an article."""
    if node.name == "nav" or str(node.get("role", "")).lower() in MENU_ROLES:
        return True
    if node.name in ("header", "footer"):
        return not node.find_parent(["article", "main", "section"]) and not node.find("h1")
    if node.name in ("div", "ul", "ol", "aside", "section", "td"):
        names = node.get_attribute_list("class") + node.get_attribute_list("id")
        return any(name and MENU_NAMES.fullmatch(name) for name in names) and not node.find("h1")
    return False


def _data_rows(table: Tag, has_header_rows: bool = False) -> list[list[str]]:
    """Return the cells of a table whose first row names its columns; none of another, or one that is for layout."""
    if table.find("table") or table.find(["td", "th"], attrs={"colspan": True}) or table.find(rowspan=True):
        return []
    rows = [row.find_all(CELLS) for row in table.find_all("tr")]
    if table.find("caption") or not rows:
        return []
    if not has_header_rows and any(cell.name != "th" for cell in rows[0]):
        return []
    if any(cell.find(CELLS) for row in rows for cell in row):  # not closed, and so inside another
        return []
    texts = [[cell.get_text(" ") for cell in row] for row in rows]
    return texts if is_header(texts) else []
