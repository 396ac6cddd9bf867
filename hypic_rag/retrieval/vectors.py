"""Nearest vectors by cosine: a faiss index under ids of our own."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class VectorIndex:
    """Vectors of length 1 under caller-given ids, which are never derived from the number of vectors.

    Kept in main memory (IndexIDMap2 over IndexFlatIP); where faiss has GPUs, searches run on a copy there.
    """

    def __init__(self, dimension: int):
        import faiss

        self._faiss: Any = faiss
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self._on_gpu: Any = None
        self.dimension = dimension
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Iterable[int], vectors: Vectors) -> None:
        """Add vectors under their ids. ``vectors``: (n, dimension) float32 of length 1. An id that is there
        already is an error of the caller.
        """
        new = np.asarray(list(ids), np.int64)
        assert vectors.shape == (len(new), self.dimension), vectors.shape
        assert len(set(new.tolist())) == len(new) and not self.ids & set(new.tolist()), "an id twice"
        if len(new):
            self._index.add_with_ids(np.ascontiguousarray(vectors, np.float32), new)
            self.ids.update(new.tolist())
            self._on_gpu = None

    def remove(self, ids: Iterable[int]) -> None:
        """Remove ids; those that are not there are passed over."""
        gone = self.ids & set(ids)
        if gone:
            self._index.remove_ids(np.asarray(sorted(gone), np.int64))
            self.ids -= gone
            self._on_gpu = None

    def search(self, query: Vectors, k: int) -> tuple[list[int], list[float]]:
        """Find the ids of the up to ``k`` nearest and their cosine similarities, the best
        first. ``query``: (dimension,)."""
        k = min(k, len(self.ids))
        if k < 1:
            return [], []
        row = np.ascontiguousarray(query, np.float32).reshape(1, -1)
        if self._gpus():
            similarities, positions = self._gpu_copy().search(row, k)
            id_map = self._faiss.vector_to_array(self._index.id_map)
            found = np.where(positions[0] >= 0, id_map[positions[0]], -1)
        else:
            similarities, labels = self._index.search(row, k)
            found = labels[0]
        pairs = [(int(i), float(s)) for i, s in zip(found, similarities[0], strict=True) if i >= 0]
        return [i for i, _ in pairs], [s for _, s in pairs]

    def similarities(self, query: Vectors, ids: Sequence[int]) -> list[float]:
        """Cosine similarities of ``query`` ((dimension,)) and the vectors under these ids, which have to be there."""
        if not ids:
            return []
        vectors = np.stack([self._index.reconstruct(i) for i in ids])
        return [float(similarity) for similarity in vectors @ np.asarray(query, np.float32)]

    def _gpus(self) -> int:
        """Count GPUs: 0 for the CPU build of faiss, which has no such function."""
        return int(self._faiss.get_num_gpus()) if hasattr(self._faiss, "StandardGpuResources") else 0

    def _gpu_copy(self) -> Any:
        if self._on_gpu is None:
            resources = self._faiss.StandardGpuResources()
            flat = self._faiss.downcast_index(self._index.index)
            # The resources must outlive the copy.
            self._on_gpu = (resources, self._faiss.index_cpu_to_gpu(resources, 0, flat))
        return self._on_gpu[1]
