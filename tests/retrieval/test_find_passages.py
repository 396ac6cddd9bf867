"""What is found for a question, what stays out, and what comes with it."""

import pytest
from fake_engine import FakeEmbedder

from hypic_rag.rag.search import SearchOptions, StoreSearch, find_passages
from hypic_rag.retrieval.store import StoredDocument


class Planned(FakeEmbedder):
    """Gives the text that begins with "0.40" a cosine of 0.4 to every question."""

    min_similarity = 0.35

    def embed(self, texts, on_progress=None):
        vectors = super().embed(texts)
        for row, text in enumerate(texts):
            similarity = float(text.split()[0]) if text[:2] == "0." else 1.0
            vectors[row] = 0
            vectors[row, 0], vectors[row, 1] = similarity, (1 - similarity**2) ** 0.5
        return vectors


def put(store, doc_id, *texts):
    pairs = [("", text) for text in texts]
    vectors = dict(zip(pairs, store.embedder.embed(texts), strict=True))
    store.swap_document(StoredDocument(doc_id, f"/docs/{doc_id}", "", "hash", {}), pairs, vectors)


FLOORS = {  # texts, question, floor (None: the embedder's), found
    "one near, others down to half of it": (
        ("0.50 bread", "0.20 mills", "0.15 ships"), "zebras", None, ["0.50 bread", "0.20 mills"],
    ),
    "none near": (("0.34 bread", "0.20 mills"), "zebras", None, []),
    "none near, but one has the word": (("0.34 bread", "0.01 zebras"), "zebras", None, ["0.01 zebras"]),
    "none near, and half of the words are too few": (
        ("0.30 bread", "0.10 red zebras", "0.10 red mills"), "red old zebras", None, ["0.10 red zebras"],
    ),
    "none near, and it has function words only": (("0.30 what is the bread",), "what is the policy?", None, []),
    "none near, but the identifier is there": (
        ("0.30 bread", "0.20 ERR_4711: disk full"), "What does ERR_4711 mean?", None, ["0.20 ERR_4711: disk full"],
    ),
    "a floor of one's own": (("0.50 bread", "0.20 mills"), "zebras", 0.6, []),
    "no floor": (("0.50 bread", "0.01 mills"), "zebras", -1.0, ["0.50 bread", "0.01 mills"]),
}  # fmt: skip


@pytest.mark.parametrize("texts, question, floor, expected", FLOORS.values(), ids=FLOORS)
def test_what_is_under_the_floor_stays_out(store, texts, question, floor, expected):
    store.embedder = Planned()
    put(store, "a", *texts)
    found = find_passages(store, question, 5, SearchOptions(min_similarity=floor))
    assert sorted(one.text for one in found) == sorted(expected)


def test_what_says_the_same_is_left_out_and_another_takes_its_place(store):
    text = " ".join(f"w{i}" for i in range(30))
    put(store, "a", text)
    put(store, "b", text.upper())
    put(store, "c", "w1 w2 something else")
    found = find_passages(store, text, 2)
    first, second = (one.metadata["doc_id"] for one in found)
    assert first in ("a", "b") and second == "c"


def test_neighbours_come_once_each_behind_what_was_found(store):
    put(store, "a", "one", "two", "three", "four", "five")
    put(store, "b", "three mills", "six")
    found = find_passages(store, "three", 2, SearchOptions(neighbours=1))
    assert [one.text for one in found] == ["three", "two", "four", "three mills", "six"]
    assert len({one.id for one in found}) == 5 and all(one.similarity is not None for one in found)
    assert found[1].place == ("a", 1)
    whole = find_passages(store, "three", 2, SearchOptions(neighbours=9))
    assert [one.text for one in whole] == ["three", "one", "two", "four", "five", "three mills", "six"]


class Longest:
    """Prefers long texts."""

    def scores(self, question, texts):
        return [float(len(text)) for text in texts]


def test_a_reranker_decides_among_many_more_than_are_asked_for(store):
    put(store, "a", *[f"ship {'x' * i}" for i in range(30)])
    found = find_passages(store, "ship", 2, SearchOptions(reranker=Longest()))
    assert [len(one.text) for one in found] == [34, 33]


def test_a_store_as_a_retriever_takes_the_options(store):
    put(store, "a", "bread", "mills")
    assert [one.text for one in StoreSearch(store, SearchOptions("lexical")).retrieve("mill", 5)] == ["mills"]
    assert StoreSearch(store, SearchOptions(min_similarity=0.9)).retrieve("zebras", 5) == []
