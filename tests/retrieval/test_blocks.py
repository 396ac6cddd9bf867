"""What belongs together in a text stays together, and what is cut off from its heading says it again."""

import pytest
from fake_engine import tokenizer

from hypic_rag.prompt import PromptFormat
from hypic_rag.retrieval.chunking import split_document

TABLE = "| day | place |\n| --- | --- |\n" + "\n".join(f"| {n} March 2024 | harbour {n} |" for n in range(1, 25))
ROWS = "\n".join(f"Item: number {n}; Price: {n}.50 euros; Place: on shelf {n}" for n in range(1, 30))
TEXTS = {  # text, pieces each of which has to stand whole in a chunk
    "paragraphs": (
        "\n\n".join(f"Walk {n}. It led along the old quay." for n in range(20)),
        ["Walk 7. It led along the"],
    ),
    "rows of a table": (TABLE, ["| 7 March 2024 | harbour 7 |", "| 24 March 2024 | harbour 24 |"]),
    "named rows": (ROWS, ROWS.split("\n")),
    "a question and its answer": (
        "\n\n".join(f"## How high is tower {n}?\n\nIt is {n} metres high." for n in range(1, 20)),
        [f"## How high is tower {n}?\n\nIt is {n} metres high." for n in range(1, 20)],
    ),
    "a list": (
        "\n\n".join("\n".join(f"- thing {a}{b}" for b in range(5)) for a in range(8)),
        ["- thing 70\n- thing 71"],
    ),
}


@pytest.fixture(scope="module")
def format() -> PromptFormat:
    return PromptFormat(tokenizer())


@pytest.mark.parametrize("text, whole", TEXTS.values(), ids=TEXTS)
def test_what_belongs_together_is_in_one_chunk(format: PromptFormat, text: str, whole: list[str]) -> None:
    chunks = split_document("Harbours", text, format, 90)
    assert len(chunks) > 2
    for piece in whole:
        assert any(piece in chunk.text for chunk in chunks), piece
    assert all(len(format.document(chunk.text, chunk.title)) <= 90 for chunk in chunks)


def test_a_table_that_is_cut_says_its_header_in_every_chunk(format: PromptFormat) -> None:
    chunks = split_document("Walks", f"# Plan\n\n{TABLE}", format, 90)
    assert len(chunks) > 2
    assert all("| day | place |\n| --- | --- |\n|" in chunk.text for chunk in chunks)


def test_headings_are_said_again_below_them(format: PromptFormat) -> None:
    """Those that still hold: of the section, and of the one around it; the document's title is there already."""
    paragraphs = "\n\n".join(f"The {n}th walk led along the old quay and back over the hill again." for n in range(12))
    chunks = split_document("Walks", f"# Walks\n\n## Spring\n\n### Old\n\nNone.\n\n### New\n\n{paragraphs}", format, 90)
    assert len(chunks) > 2
    assert all(chunk.text.startswith("## Spring\n\n### New\n\n") for chunk in chunks[1:])


def test_no_chunk_ends_with_a_heading_or_is_a_scrap(format: PromptFormat) -> None:
    text = "\n\n".join(f"## Walk {n}\n\nIt led along the old quay, over the hill and home again." for n in range(9))
    for max_tokens in range(64, 200, 17):
        chunks = split_document("Walks", text, format, max_tokens)
        sizes = [format.count(chunk.text) for chunk in chunks]
        assert not any(chunk.text.split("\n")[-1].startswith("#") for chunk in chunks)
        assert min(sizes) >= max(sizes) // 3, sizes


def test_a_hash_in_code_is_no_heading(format: PromptFormat) -> None:
    code = "```\n" + "\n".join(f"# step {n}\nrun {n}" for n in range(60)) + "\n```"
    assert not any(chunk.text.startswith("# step 0\n\n") for chunk in split_document("", code, format, 64))
