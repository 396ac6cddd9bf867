"""The page that a passage is on goes with it from the file to the store, and to who is answered."""

import re
import sqlite3
from dataclasses import replace

import pytest
from fake_engine import FakeEmbedder, tokenizer
from pypdf import PdfReader, PdfWriter
from test_readers import pdf

from hypic_rag.errors import StoreDamaged
from hypic_rag.integrations.llama_index.retriever import node_of
from hypic_rag.prompt import PromptFormat
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.search import find_passages
from hypic_rag.retrieval import chunking
from hypic_rag.retrieval.chunking import split_document
from hypic_rag.retrieval.ingest import plan_ingest, run_ingest
from hypic_rag.retrieval.readers import read_path
from hypic_rag.retrieval.readers.pages import from_place, joined, label_of
from hypic_rag.retrieval.store import Store, StoredDocument


@pytest.fixture(scope="module")
def format() -> PromptFormat:
    return PromptFormat(tokenizer())


def sentence(page, n):
    return f"Pier {n} of p{page} was built of grey stone."


def prose(page, n):
    return " ".join(sentence(page, i) for i in range(n))


ROWS = "\n".join(f"| {n} March | harbour {n} of p2 |" for n in range(1, 30))
LAYOUTS = {  # texts of pages; what is of page 3 has the word p3, but for headings and the header of the table
    "a chunk a page and more": [prose(n, 20) for n in range(1, 6)],
    "many pages in a chunk": [prose(n, 1) for n in range(1, 30)],
    "an empty page between": [prose(1, 3), "  \n ", prose(3, 30)],
    "a table that is cut": [prose(1, 2), f"| day | place |\n| --- | --- |\n{ROWS}", prose(3, 2)],
    "headings that are said again": [f"# One\n\n{prose(1, 9)}", prose(2, 30), f"## Two\n\n{prose(3, 30)}"],
    "no place to cut": [prose(1, 2), "p2" * 600, prose(3, 2)],
    "lines": ["\n".join(sentence(n, i) for i in range(12)) for n in range(1, 5)],
}


@pytest.mark.parametrize("overlap", [0, 30])
@pytest.mark.parametrize("max_tokens", [64, 150])
@pytest.mark.parametrize("texts", LAYOUTS.values(), ids=LAYOUTS)
def test_a_chunk_is_on_the_pages_of_its_words(format, texts, max_tokens, overlap):
    text, pages = joined((str(n), text) for n, text in enumerate(texts, 1))
    chunks = split_document("Piers", text, format, max_tokens, overlap, pages)
    assert len(chunks) > 1
    for chunk in chunks:
        own = [int(n) for n in re.findall(r"p(\d+)", chunk.text)]
        said = [int(n) for n in chunk.page_label.split("–")]
        if overlap:  # what is repeated may itself begin with what is said again, so that it is a page more
            assert min(own) - 1 <= said[0] <= min(own) and max(own) <= said[-1] <= max(own) + 1, chunk.text
        else:
            assert (said[0], said[-1]) == (min(own), max(own)) and len(said) <= 2, chunk.text
    bare = split_document("Piers", text, format, max_tokens, overlap)
    assert [replace(chunk, page_label="") for chunk in chunks] == bare


PAGES = ((0, "i"), (10, "ii"), (10, "iii"), (25, "1"))
PLACES = {  # from, to, label
    "the first": (0, 10, "i"),
    "one character": (9, 10, "i"),
    "both sides of an edge": (9, 11, "i–iii"),
    "the last": (25, 99, "1"),
    "all": (0, 99, "i–1"),
    "nothing": (10, 10, "iii"),
}


@pytest.mark.parametrize("start, end, label", PLACES.values(), ids=PLACES)
def test_characters_are_on_pages(start, end, label):
    assert label_of(PAGES, start, end) == label
    assert label_of((), start, end) == ""
    for cut in (0, 3, 10, 24):  # of a text that is cut in parts, each has its own
        if cut <= start:
            assert label_of(from_place(PAGES, cut), start - cut, end - cut) == label


def test_a_pdf_has_the_labels_that_a_viewer_shows(tmp_path):
    plain = pdf(tmp_path / "plain.pdf", ["one", "", "three"])
    (document,) = read_path(plain)
    assert document.pages == ((0, "1"), (3, "3"))
    writer = PdfWriter(clone_from=PdfReader(plain))
    writer.set_page_label(0, 1, style="/r")
    writer.set_page_label(2, 2, style="/D", start=7)
    writer.write(tmp_path / "labelled.pdf")
    writer.close()
    (document,) = read_path(tmp_path / "labelled.pdf")
    assert document.pages == ((0, "i"), (3, "7"))


def test_a_text_with_form_feeds_has_pages_and_another_has_none(tmp_path):
    (tmp_path / "a.txt").write_text("one page\n\fand two\n\n\f \fthe fourth")
    (tmp_path / "b.txt").write_text("one page")
    paged, plain = read_path(tmp_path)
    assert paged.text == "one page\n\nand two\n\nthe fourth"
    assert paged.pages == ((0, "1"), (7, "2"), (13, "4")) and plain.pages == ()


def put(store, texts, labels=None):
    pairs = [("T", text) for text in texts]
    vectors = dict(zip(pairs, store.embedder.embed(texts), strict=True))
    store.swap_document(StoredDocument("a", "/docs/a", "T", "hash", {}), pairs, vectors, labels)


def labels(store):
    return {chunk.text: chunk.page_label for chunk in store.chunks()}


def forget_pages(folder):
    """Make the store what a version made that knew of no pages."""
    db = sqlite3.connect(folder / "store.sqlite")
    db.execute("ALTER TABLE chunks DROP COLUMN page_label")
    db.commit()
    db.close()


def test_what_is_found_is_told_with_its_page_to_llama_index_too(store):
    put(store, ["ships in the harbour", "bread and flour"], ["7–8", ""])
    found = {one.text: one for one in find_passages(store, "ships or bread", 5)}
    paged, unpaged = found["ships in the harbour"], found["bread and flour"]
    assert (paged.page_label, unpaged.page_label) == ("7–8", None)
    assert node_of(paged).metadata["page_label"] == "7–8" and "page_label" not in node_of(unpaged).metadata
    assert Passage("", "", metadata={"page_label": 3}).page_label == "3"  # of a row of JSON lines


def test_a_store_of_an_earlier_version_is_read_as_it_is_and_gets_pages_with_its_next_change(store, folder):
    put(store, ["one", "two"])
    ids = [chunk.id for chunk in store.chunks()]
    store.close()
    forget_pages(folder)
    with Store.open(folder, embedder=FakeEmbedder()) as store, Store.open(folder, embedder=FakeEmbedder()) as other:
        assert labels(store) == {"one": "", "two": ""} and len(find_passages(store, "two", 5)) == 2
        put(store, ["one", "two", "three"], ["1", "1–2", "2"])
        assert labels(store) == {"one": "1", "two": "1–2", "three": "2"}
        assert [chunk.id for chunk in store.chunks()][:2] == ids
        assert set(labels(other)) == {"one", "two", "three"}  # it had opened what had none
        put(other, ["two", "three"], ["5", ""])
        assert labels(other) == labels(store) == {"two": "5", "three": ""}


def test_a_pdf_that_an_earlier_version_ingested_gets_its_pages_and_nothing_is_computed(
    store, folder, engine, tmp_path, monkeypatch
):
    file = pdf(tmp_path / "a.pdf", ["The ships are in the harbour.", "Bread is baked from flour."])
    run_ingest(plan_ingest(store, engine, [file]))
    assert {one.page_label for one in store.chunks()} == {"1–2"}
    (document,) = read_path(file)
    was = f"{chunking.VERSION}:{replace(document, pages=()).content_hash}"
    store.close()
    forget_pages(folder)
    db = sqlite3.connect(folder / "store.sqlite")
    db.close()
    with Store.open(folder, embedder=FakeEmbedder()) as store:
        (stored,) = store.documents()
        pairs = [(chunk.title, chunk.text) for chunk in store.chunks()]
        store.swap_document(replace(stored, content_hash=was), pairs, {})
        engine.prefilled.clear()
        report = run_ingest(plan_ingest(store, engine, [file]))
        assert (report.n_metadata, report.n_new, report.n_changed, report.n_prefilled) == (1, 0, 0, 0)
        assert store.embedder.embedded == [] and {one.page_label for one in store.chunks()} == {"1–2"}
        assert run_ingest(plan_ingest(store, engine, [file])).n_unchanged == 1


@pytest.mark.parametrize("change", ["'9' || substr(page_label, 2)", "''' x'''", "substr(page_label, 2)"])
def test_a_page_that_was_not_stored_is_damage(store, folder, change):
    put(store, ["one", "two"], ["12", "13"])
    store.close()
    db = sqlite3.connect(folder / "store.sqlite")
    db.execute(f"UPDATE chunks SET page_label = {change} WHERE text = 'two'")
    db.commit()
    db.close()
    with Store.open(folder, embedder=FakeEmbedder()) as store, pytest.raises(StoreDamaged, match="the page of chunk"):
        find_passages(store, "two", 5)
