"""A cross-encoder, which reads question and passage together, to rank again what was found."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hypic_rag.errors import BadInput, ModelNotReady
from hypic_rag.locks import FairLock
from hypic_rag.paths import absolute, exists, utf8

BATCH = 16


class Reranker:
    """A sentence-transformers CrossEncoder by name; nothing is loaded before the first question.

    name: a local folder or a hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2.
    """

    def __init__(self, name: str | os.PathLike[str]):
        given = os.fspath(name)
        is_folder = exists(folder := absolute(given)) and folder.is_dir()
        self.name = str(utf8(folder.resolve())) if is_folder else given
        self._lock = FairLock("this Reranker")

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the question, more being better; comparable for one question only.

        A text is read as far as the model's longest input. Raises ModelNotReady, BadInput.
        """
        if not texts:
            return []
        with self._lock:  # fast tokenizers do not bear two threads at once
            found = np.asarray(
                self._model.predict([(question, text) for text in texts], batch_size=BATCH, show_progress_bar=False),
                np.float64,
            )
        if found.shape != (len(texts),) or not np.isfinite(found).all():
            raise BadInput(
                f"{self.name} is no reranker: it gives {found.shape[1:] or 'no finite'} scores a passage instead of "
                "one number. Name a cross-encoder with --reranker, or leave it out"
            )
        return [float(score) for score in found]

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import CrossEncoder  # takes seconds to import

        try:
            return CrossEncoder(self.name)
        except Exception as error:
            raise ModelNotReady(
                f"the reranker {self.name!r} could not be loaded, neither from a folder here nor from the Hugging Face "
                f"hub ({type(error).__name__}: {error}). Give a folder or a hub name with --reranker, or leave it out"
            ) from error
