"""Documents and chunks as rows of store.sqlite, and back, if they are what was stored.

SQLite does not notice a flipped bit in a value. So what an answer shows, or what decides which texts are found, carries
a seal; of a chunk's texts that is their ``rendering``, of its document and its vector one behind the vector, of its
page label one behind the label. Rows of version 1 have none behind metadata and vectors.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hypic_rag.retrieval.vectors import Vectors
from hypic_rag.sqlite_rows import DamagedRow
from hypic_rag.stored_json import parse_object

SEAL_BYTES = 4
DOCUMENT = "doc_id, source, title, content_hash, metadata"
CHUNK = "id, doc_id, ordinal, title, text, rendering"


@dataclass(frozen=True)
class StoredDocument:
    doc_id: str
    source: str  # the file it was read from
    title: str
    content_hash: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class StoredChunk:
    """``id`` is never used again, also not after the chunk has gone."""

    id: int
    doc_id: str
    ordinal: int
    title: str
    text: str
    page_label: str = ""  # of the page or pages that it is on; empty where that is not known


def rendering(title: str, text: str) -> bytes:
    """Hash a chunk: equal for two that the model reads as the same segment."""
    return hashlib.sha256(f"{title}\0{text}".encode()).digest()


def pair_of(row: Sequence[Any]) -> tuple[str, str]:
    """Return title and text, of the columns title, text, rendering. Raises DamagedRow."""
    title, text, stored = row
    if rendering(title, text) != stored:
        raise DamagedRow("a chunk's text is not what was stored")
    return title, text


def chunk_of(row: Sequence[Any]) -> StoredChunk:
    """Make a chunk of the columns CHUNK and page_label. Raises DamagedRow."""
    chunk_id, doc_id, ordinal, *rest, sealed_label = row
    title, text = pair_of(rest)
    page_label = sealed_label[: -2 * SEAL_BYTES]
    if sealed_label != label_text(page_label, title, text):
        raise DamagedRow(f"the page of chunk {chunk_id} is not what was stored")
    return StoredChunk(chunk_id, doc_id, ordinal, title, text, page_label)


def label_text(page_label: str, title: str, text: str) -> str:
    """Make the column page_label: with a seal, or empty."""
    return page_label and page_label + _seal(page_label, rendering(title, text)).hex()


def row_of(document: StoredDocument, is_sealed: bool) -> tuple[str, ...]:
    """Make the columns DOCUMENT."""
    texts = (document.doc_id, document.source, document.title, document.content_hash)
    metadata = json.dumps(document.metadata)
    return (*texts, metadata + _seal(*texts, metadata).hex() if is_sealed else metadata)


def document_of(row: Sequence[Any], is_sealed: bool) -> StoredDocument:
    """Make a document of the columns DOCUMENT. Raises DamagedRow."""
    doc_id, source, title, content_hash, metadata = row
    if is_sealed:
        metadata, seal = metadata[: -2 * SEAL_BYTES], metadata[-2 * SEAL_BYTES :]
        if _seal(doc_id, source, title, content_hash, metadata).hex() != seal:
            raise DamagedRow(f"document {doc_id} and its metadata are not what was stored")
    try:
        return StoredDocument(doc_id, source, title, content_hash, parse_object(metadata))
    except ValueError as error:
        raise DamagedRow(f"the metadata of document {doc_id} cannot be read: {error}") from error


def blob_of(vector: Vectors, doc_id: str, is_sealed: bool) -> bytes:
    """Pack a vector, (dimension,) float32, as the database keeps it. doc_id: of the document that
    the chunk is shown as a part of."""
    data = np.asarray(vector, "<f4").tobytes()
    return data + _seal(data, doc_id) if is_sealed else data


def vectors_of(rows: Sequence[tuple[int, str, bytes]], dimension: int, is_sealed: bool) -> Vectors:
    """Make vectors (n, dimension) of the columns id, doc_id, embedding. Raises DamagedRow."""
    n_bytes = 4 * dimension
    for chunk_id, doc_id, blob in rows:
        if len(blob) != n_bytes + SEAL_BYTES * is_sealed:
            raise DamagedRow(f"the vector of chunk {chunk_id} has a wrong length")
        if is_sealed and _seal(blob[:n_bytes], doc_id) != blob[n_bytes:]:
            raise DamagedRow(f"the vector of chunk {chunk_id}, or its document, is not what was stored")
    vectors = np.stack([np.frombuffer(blob, "<f4", dimension) for *_, blob in rows])
    if not np.isfinite(vectors).all():
        raise DamagedRow("vectors are not finite numbers")
    return vectors


def _seal(*values: str | bytes) -> bytes:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    text = b"".join(len(value).to_bytes(8, "little") + value for value in encoded)
    return zlib.crc32(text).to_bytes(SEAL_BYTES, "little")
