"""Rankings are fused by the sum of their reciprocal ranks, and a store finds what either of them finds."""

import pytest
from fake_engine import FakeEmbedder

from hypic_rag.retrieval.fusion import reciprocal_rank_fusion
from hypic_rag.retrieval.store import StoredDocument

CASES = {  # rankings, constant, fused
    "none": ([], 60, []),
    "one": ([[3, 1, 2]], 60, [3, 1, 2]),
    "equal sums": ([[1, 2], [2, 1]], 60, [1, 2]),
    "in both before first in one": ([[1, 2], [3, 2]], 60, [2, 1, 3]),
    "a small constant heeds the first": ([[1, 8, 9, 2], [3, 6, 7, 2]], 0, [1, 3, 8, 2, 6, 9, 7]),
    "an empty one": ([[], [5, 4]], 60, [5, 4]),
}


@pytest.mark.parametrize("rankings, constant, fused", CASES.values(), ids=CASES)
def test_reciprocal_rank_fusion(rankings, constant, fused):
    ids = {i for one in rankings for i in one}
    scores = {i: sum(1 / (constant + one.index(i) + 1) for one in rankings if i in one) for i in ids}
    assert sorted(fused) == sorted(scores) and [scores[i] for i in fused] == sorted(scores.values(), reverse=True)
    assert reciprocal_rank_fusion(rankings, constant) == fused


class Blind(FakeEmbedder):
    """Sees the same in every text but "bread"."""

    def embed(self, texts, on_progress=None):
        return super().embed(["bread" if text == "bread" else "fog" for text in texts])


METHODS = {"dense": ["bread"], "lexical": ["the code ERR-4711"], "hybrid": ["bread", "the code ERR-4711"]}


@pytest.mark.parametrize("method, expected", METHODS.items())
def test_each_method_finds_its_own(store, method, expected):
    store.embedder = Blind()
    texts = ["fog", "the code ERR-4711", "mist", "bread"]
    pairs = [("", text) for text in texts]
    store.swap_document(
        StoredDocument("a", "/a", "", "hash", {}), pairs, dict(zip(pairs, store.embedder.embed(texts), strict=True))
    )
    query = store.embedder.embed_query("bread")
    found = store.search(query, len(expected), "what is ERR-4711?", method)
    assert sorted(one.chunk.text for one in found) == sorted(expected)
    for one in found:
        assert one.similarity == pytest.approx(float(query @ store.embedder.embed([one.chunk.text])[0]))
