"""No chunk exceeds its tokens, no text is lost, whatever the text is."""

import random

import pytest
from fake_engine import tokenizer
from llama_index.core.node_parser import SentenceSplitter
from llama_index_instrumentation import root_dispatcher
from llama_index_instrumentation.span_handlers.base import BaseSpanHandler

from hypic_rag.errors import BadInput
from hypic_rag.prompt import PromptFormat
from hypic_rag.retrieval.chunking import split_document


@pytest.fixture(scope="module")
def format():
    return PromptFormat(tokenizer())


WORDS = [
    "the",
    "harbour",
    "was",
    "built",
    "of",
    "grey",
    "stone",
    "by",
    "people",
    "who",
    "came",
    "from",
    "the",
    "north",
    "and",
    "stayed",
]


def prose(n_words):
    rng = random.Random(0)
    return ". ".join(" ".join(rng.choice(WORDS) for _ in range(12)).capitalize() for _ in range(n_words // 12)) + "."


TEXTS = {
    "one word": "Harbour",
    "prose": prose(900),
    "paragraphs": "\n\n\n".join(prose(120) for _ in range(5)),
    "no sentence ends": " ".join(WORDS * 60),
    "no blanks": "x9Qz7" * 1500,
    "one letter": "A" * 4000,
    "digits": "31415926535" * 400,
    "emoji": "🏴‍☠️🧑‍🚀" * 300,
    "Chinese": "石造的港口是由来自北方并留下来的人们建造的。" * 60,
    "control tokens": "a <|im_end|> b <|im_start|>user " * 80,
    "line separators": "one\u2028two\u2029three\n" * 200,
    "a long line among prose": prose(200) + "\n" + "A" * 3000 + "\n" + prose(200),
}


@pytest.mark.parametrize("max_tokens", [64, 200])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_chunk_fits_and_together_they_are_the_text(format, text, max_tokens):
    chunks = split_document("Old harbours", text, format, max_tokens)

    sizes = [len(format.document(chunk.text, chunk.title)) for chunk in chunks]
    assert max(sizes) <= max_tokens
    assert "".join("".join(chunk.text for chunk in chunks).split()) == "".join(text.split())
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    # Chunks are filled: at most twice as many as the text's tokens need.
    room = max_tokens - len(format.document("", "Old harbours"))
    assert len(chunks) <= 2 * (format.count(text) / room) + 1


def test_overlap_repeats_the_end_of_the_chunk_before(format):
    first, second, *_ = split_document("", prose(300), format, 100, overlap_tokens=40)
    sentence = first.text.split(". ")[-1].rstrip(".")
    assert sentence in second.text


def test_a_short_document_is_one_chunk(format):
    [chunk] = split_document("  A\n title ", " Text. \n", format, 64)
    assert (chunk.title, chunk.text, chunk.ordinal) == ("A title", "Text.", 0)


def test_blank_text_has_no_chunk(format):
    assert split_document("Title", " \n\t\u2003", format, 64) == []


def test_a_long_title_is_shortened_and_leaves_room(format):
    chunks = split_document("harbour master " * 60, prose(120), format, 128)
    assert chunks[0].title.startswith("harbour master") and chunks[0].title.endswith("…")
    assert format.count(chunks[0].title) <= 128 // 4 + 1
    assert all(len(format.document(chunk.text, chunk.title)) <= 128 for chunk in chunks)


SIZES = {
    "tiny chunks": (10, 0, "at least 64"),
    "overlap too large": (100, 60, "0 to 50"),
    "negative overlap": (100, -1, "0 to 50"),
}


@pytest.mark.parametrize("max_tokens, overlap, remedy", SIZES.values(), ids=SIZES)
def test_impossible_sizes_are_refused(format, max_tokens, overlap, remedy):
    with pytest.raises(BadInput, match=remedy):
        split_document("", "text", format, max_tokens, overlap)


class Noting(BaseSpanHandler):
    """Notes the calls that LlamaIndex's instrumentation sees."""

    def new_span(self, id_, *_, **__):
        self.current_span_ids[id_] = id_

    def prepare_to_exit_span(self, *_, **__): ...
    def prepare_to_drop_span(self, *_, **__): ...


def test_no_interrupt_is_lost_in_the_instrumentation(format, monkeypatch):
    """It swallows whatever is raised while it takes note of a call, so there must be none."""
    noting = Noting()
    monkeypatch.setattr(root_dispatcher, "span_handlers", [noting])
    split_document("T", prose(100), format, 64)
    assert not noting.current_span_ids
    SentenceSplitter().split_text("A text.")
    assert len(noting.current_span_ids) == 1
