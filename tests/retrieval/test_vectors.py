"""The vector index against a plain product of all vectors, over adds and removals."""

import numpy as np
import pytest

from hypic_rag.retrieval.vectors import VectorIndex


def unit(n, dimension=16, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((n, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


CASES = {  # ids removed of 0..9, k
    "nothing removed": ([], 3),
    "first removed": ([0], 4),
    "middle and last removed": ([4, 5, 9], 7),
    "more asked than there are": ([1], 50),
    "an unknown id removed": ([77], 10),
    "all removed": (list(range(10)), 5),
}


@pytest.mark.parametrize("removed, k", CASES.values(), ids=CASES)
def test_search_equals_a_product_of_all_vectors(removed, k):
    ids, vectors, query = np.arange(10) * 7 + 3, unit(10), unit(1, seed=1)[0]
    index = VectorIndex(16)
    index.add(ids.tolist(), vectors)
    index.remove([int(ids[i]) if i < 10 else i for i in removed])
    kept = np.setdiff1d(np.arange(10), removed)
    similarities = vectors[kept] @ query
    best = np.argsort(-similarities)[:k]

    found, scores = index.search(query, k)

    assert found == ids[kept][best].tolist()
    np.testing.assert_allclose(scores, similarities[best], atol=1e-6)
    assert len(index) == len(kept)


def test_an_id_added_after_a_removal_finds_its_own_vector():
    vectors = unit(4)
    index = VectorIndex(16)
    index.add([1, 2, 3], vectors[:3])
    index.remove([1])
    index.add([4], vectors[3:])

    assert [index.search(vectors[i], 1)[0] for i in (1, 2, 3)] == [[2], [3], [4]]
    index.remove([4])
    assert index.search(vectors[2], 1)[0] == [3]


def test_the_copy_on_a_gpu_is_searched_by_position(monkeypatch):
    """The branch for GPUs, on a copy in main memory: positions shift after a removal, ids must not."""
    import faiss

    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: None, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda _, device, flat: faiss.clone_index(flat), raising=False)
    vectors = unit(6)
    index = VectorIndex(16)
    index.add([10, 20, 30, 40, 50, 60], vectors)
    assert index.search(vectors[3], 1)[0] == [40]
    index.remove([20])
    assert [index.search(vectors[i], 1)[0] for i in (0, 2, 5)] == [[10], [30], [60]]
    assert sorted(index.search(vectors[0], 9)[0]) == [10, 30, 40, 50, 60]
