"""A store: one folder with the documents, their chunks, their vectors and their cached segments.

``store.json`` says what it was made with, ``store.sqlite`` holds texts and vectors, ``segments/`` is the
disk tier of the segment cache. The vectors stand in the rows of their chunks, and the index is built from
them in memory, so index and texts cannot disagree. Several processes may read and write one store at once.
"""

import contextlib
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_rag.cache.report import Miss
from hypic_rag.cache.tiers.index_queries import EntryFilter
from hypic_rag.errors import BadInput, StoreDamaged
from hypic_rag.paths import exists
from hypic_rag.retrieval import lexical, schema
from hypic_rag.retrieval.chunking import DEFAULT_CHUNK_TOKENS, check_sizes
from hypic_rag.retrieval.database import FILE as SQLITE
from hypic_rag.retrieval.database import StoreDatabase
from hypic_rag.retrieval.embedder import Embedder
from hypic_rag.retrieval.fusion import CANDIDATES, Method, reciprocal_rank_fusion
from hypic_rag.retrieval.manifest import FILE, Manifest, how_to_rebuild, opens_again
from hypic_rag.retrieval.rows import (
    DOCUMENT,
    StoredChunk,
    blob_of,
    chunk_of,
    document_of,
    label_text,
    pair_of,
    rendering,
    row_of,
    vectors_of,
)
from hypic_rag.retrieval.rows import StoredDocument as StoredDocument  # what Store takes and gives
from hypic_rag.retrieval.vectors import VectorIndex, Vectors
from hypic_rag.sqlite_file import what_to_do
from hypic_rag.sqlite_rows import DamagedRow

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

SEGMENTS = "segments"
LOCK = "store.lock"


@dataclass(frozen=True)
class Found:
    chunk: StoredChunk
    metadata: dict[str, Any]  # the document's
    similarity: float  # cosine


@dataclass(frozen=True)
class Swap:
    """What a new version of a document did to its chunks."""

    n_kept: int
    n_added: int
    n_removed: int


class NeedsVectors(Exception):
    """A swap lacks the vectors of these (title, text) pairs; nothing was changed."""

    def __init__(self, texts: Sequence[tuple[str, str]]):
        super().__init__(f"{len(texts)} chunks have no vector")
        self.texts = tuple(texts)


class Store:
    """Open with ``create_or_open`` or ``open``; may be used from several threads. Close it when done."""

    def __init__(self, folder: Path, manifest: Manifest, embedder: Embedder):
        self.folder = folder
        self.manifest = manifest
        self.embedder = embedder
        self._database = StoreDatabase(folder, manifest.store_id)
        self._index = VectorIndex(manifest.dimension)
        self._is_lexical_prepared = False
        self._indexed = -1  # the generation that the index shows
        self._prompt_format = manifest.prompt_format  # of the engine that it is used with
        try:
            with self._database.reading():
                self._refresh()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def segments_folder(folder: str | os.PathLike[str]) -> Path:
        """Return where the segment cache of a store keeps its files."""
        return Path(folder).expanduser() / SEGMENTS

    @classmethod
    def create_or_open(
        cls,
        folder: str | os.PathLike[str],
        engine: "SegmentEngine",
        *,
        embedder: Embedder | None = None,
        chunk_tokens: int | None = None,
        chunk_overlap: int | None = None,
        renew: bool = False,
    ) -> "Store":
        """Open the store in ``folder``, or make a new one for this engine and embedder.

        An embedder or sizes that are None are the store's own, for a new one all-MiniLM-L6-v2, 128 and 0.
        renew: as the method does, where the store was made with other weights of the engine's model.
        Several processes may call this at once.
        Raises StoreMismatch where the store was made otherwise, StoreDamaged where it cannot be read.
        """
        folder = Path(folder).expanduser()
        try:
            if Manifest.read(folder) is None:  # one that is there may be where nothing can be written
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / LOCK).open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file closes, also by kill -9
                    if Manifest.read(folder) is None:
                        embedder = embedder or Embedder()
                        sizes = (
                            DEFAULT_CHUNK_TOKENS if chunk_tokens is None else chunk_tokens,
                            chunk_overlap or 0,
                        )
                        cls._create(folder, engine, embedder, *sizes)
        except (OSError, sqlite3.Error) as error:
            to_do = what_to_do(folder / SQLITE, error)
            raise BadInput(f"no store can be made in {folder}: {error}. {to_do}") from error
        store = cls.open(folder, embedder=embedder)
        try:
            if renew:
                store.renew(engine)
            store.check_engine(engine)
            store.manifest.check_chunking(chunk_tokens, chunk_overlap, folder)
        except Exception:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, embedder: Embedder | None = None) -> "Store":
        """Open an existing store. Without ``embedder``, the one that the store names is used.

        Raises BadInput where there is no store, StoreMismatch for another embedder, StoreDamaged.
        """
        folder = Path(folder).expanduser()
        manifest, database = Manifest.read(folder), folder / SQLITE
        if manifest is None:
            if schema.n_documents(database):
                raise StoreDamaged(f"{folder} has {SQLITE} with documents but no {FILE}. {how_to_rebuild(folder)}")
            raise BadInput(f"there is no store in {folder}: make one with hypic-rag ingest PATH…")
        if not exists(database):
            raise StoreDamaged(f"{folder} has {FILE} but no {SQLITE}. {how_to_rebuild(folder)}")
        embedder = embedder or Embedder(manifest.embedder)
        manifest.check_embedder(embedder.name, embedder.fingerprint, folder)
        return cls(folder, manifest, embedder)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_engine(self, engine: "SegmentEngine") -> None:
        """Raise StoreMismatch unless the store was made with this engine's model and prompt format."""
        self.manifest.check_engine(engine, self.folder)
        self._prompt_format = engine.format.version

    def renew(self, engine: "SegmentEngine") -> int:
        """Make the store one of the engine's weights, where it was made with others of the same model, say by an
        earlier version of this program. Return how many entries of those were removed from the disk tier.

        Documents and vectors stay. What they need cached is then missing, and is prefilled by ``plan_again`` or when it
        is first asked for. Raises BadInput where nothing can be written.
        """
        former = self.manifest
        if former.model_fingerprint == engine.fingerprint or not former.is_of(engine):
            return 0
        renewed = replace(former, model_fingerprint=engine.fingerprint)
        renewed.check_engine(engine, self.folder)
        with self._database.writing():  # of all writers the only one
            try:
                renewed.write(self.folder)
            except OSError as error:
                raise BadInput(f"{self.folder / FILE} cannot be written: {error}. Check its permissions") from error
        self.manifest = renewed
        disk = engine.cache.disk
        if disk is None:
            return 0
        of_former = disk.listed(EntryFilter(namespace=engine.namespace, model=former.model_fingerprint))
        return disk.discard((one.record.digest for one in of_former), Miss("deleted", "made with former weights"))

    # reading

    def search(self, query: Vectors, k: int, question: str = "", method: Method = "hybrid") -> list[Found]:
        """Return the up to ``k`` chunks nearest to a question, the best first.

        query: (dimension,) float32 of length 1, its vector. question: its words; without any the method is dense.
        """
        method = method if question else "dense"
        if method != "dense":
            self._prepare_lexical()
        with self._database.reading() as db:
            self._refresh()
            depth = max(k, CANDIDATES)
            rankings = []
            if method != "lexical":
                rankings.append(self._index.search(query, depth)[0])
            if method != "dense":
                rankings.append(lexical.matches(db, question, depth))
            ids = reciprocal_rank_fusion(rankings)[:k]
            if not self._index.ids.issuperset(ids):
                raise DamagedRow("words are found of chunks that are not there")
            similarities = self._index.similarities(query, ids)
            select = f"SELECT {self._database.chunk_columns} FROM chunks WHERE id IN ({','.join('?' * len(ids))})"
            chunks = {row[0]: chunk_of(row) for row in db.execute(select, ids)}
            documents = {doc_id: self.document(doc_id) for doc_id in {chunk.doc_id for chunk in chunks.values()}}
            if len(chunks) != len(ids) or None in documents.values():
                raise DamagedRow("chunks that are found have lost their rows")
        return [
            Found(chunks[i], found.metadata, similarity)
            for i, similarity in zip(ids, similarities, strict=True)
            if (found := documents[chunks[i].doc_id]) is not None
        ]

    def coverage(self, question: str, found: Sequence[Found]) -> list[float]:
        """Return which share of the question's words, by their weight, each of these has: see lexical.py."""
        with self._database.reading() as db:
            shares = lexical.coverage(db, question, [one.chunk.id for one in found])
        return [shares.get(one.chunk.id, 0.0) for one in found]

    def with_neighbours(self, found: Sequence[Found], n: int, query: Vectors) -> list[Found]:
        """Return what was found, each followed by up to ``n`` chunks before and after it in its document, once each.

        query: as in ``search``, of which they get their similarity.
        """
        known = {one.chunk.id for one in found}
        widened: list[Found] = []
        with self._database.reading() as db:
            self._refresh()
            for one in found:
                rows = db.execute(
                    f"SELECT {self._database.chunk_columns} FROM chunks "
                    "WHERE doc_id = ? AND ordinal BETWEEN ? AND ? ORDER BY ordinal",
                    (one.chunk.doc_id, one.chunk.ordinal - n, one.chunk.ordinal + n),
                )
                beside = [chunk for chunk in map(chunk_of, rows.fetchall()) if chunk.id not in known]
                known.update(chunk.id for chunk in beside)
                similarities = self._index.similarities(query, [chunk.id for chunk in beside])
                widened.append(one)
                widened += [
                    Found(chunk, one.metadata, similarity)
                    for chunk, similarity in zip(beside, similarities, strict=True)
                ]
        return widened

    def documents(self) -> list[StoredDocument]:
        with self._database.reading() as db:
            rows = db.execute(f"SELECT {DOCUMENT} FROM documents ORDER BY doc_id")
            return [document_of(row, self._database.is_sealed) for row in rows]

    def document(self, doc_id: str) -> StoredDocument | None:
        with self._database.reading() as db:
            row = db.execute(f"SELECT {DOCUMENT} FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
            return document_of(row, self._database.is_sealed) if row else None

    def chunks(self, doc_id: str | None = None) -> list[StoredChunk]:
        """List the chunks of one document in their order, or of all."""
        where, values = ("WHERE doc_id = ?", (doc_id,)) if doc_id is not None else ("", ())
        with self._database.reading() as db:
            query = f"SELECT {self._database.chunk_columns} FROM chunks {where} ORDER BY doc_id, ordinal"
            return [chunk_of(row) for row in db.execute(query, values)]

    def vectors(self, doc_id: str) -> dict[tuple[str, str], Vectors]:
        """Return (title, text) of a document's chunks, each with its vector, as ``swap_document`` takes them."""
        with self._database.reading() as db:
            query = "SELECT id, doc_id, embedding FROM chunks WHERE doc_id = ? ORDER BY ordinal"
            rows = db.execute(query, (doc_id,)).fetchall()
            pairs = [(chunk.title, chunk.text) for chunk in self.chunks(doc_id)]
            if not pairs:
                return {}
            return dict(zip(pairs, vectors_of(rows, self.manifest.dimension, self._database.is_sealed), strict=True))

    def counts(self) -> tuple[int, int]:
        """Count documents and chunks."""
        with self._database.reading() as db:
            n_documents, n_chunks = db.execute(
                "SELECT (SELECT count(*) FROM documents) AS n_documents, (SELECT count(*) FROM chunks) AS n_chunks"
            ).fetchone()
        return n_documents, n_chunks

    def gone(self) -> list[tuple[str, str]]:
        """List (title, text) of chunks that were removed and that no chunk left is equal to: of no more use cached."""
        with self._database.reading() as db:
            query = "SELECT title, text, rendering FROM gone WHERE rendering NOT IN (SELECT rendering FROM chunks)"
            return [pair_of(row) for row in db.execute(query)]

    def _prepare_lexical(self) -> None:
        """Make the lexical index whole, once: an earlier version made none, and what is there may be damaged.

        Where nothing can be written it is used as it is.
        """
        if not self._is_lexical_prepared:
            with contextlib.suppress(BadInput), self._database.deriving() as db:
                lexical.make_whole(db)
            self._is_lexical_prepared = True

    # writing

    def swap_document(
        self,
        document: StoredDocument,
        chunks: Sequence[tuple[str, str]],
        vectors: dict[tuple[str, str], Vectors],
        page_labels: Sequence[str] | None = None,
    ) -> Swap:
        """Put a document's new version in the place of the old one, in one transaction.

        chunks: (title, text) in their order. A chunk that was there with the same title and text keeps its
        id and its vector; every other needs one in ``vectors``. page_labels: one a chunk, empty where it has none; None
        where no chunk has. Raises NeedsVectors where one is missing.
        """
        labels = page_labels or [""] * len(chunks)
        sealed = [label_text(label, *pair) for label, pair in zip(labels, chunks, strict=True)]
        with self._writing() as db:
            old: dict[tuple[str, str], list[StoredChunk]] = {}
            for chunk in self.chunks(document.doc_id):
                old.setdefault((chunk.title, chunk.text), []).append(chunk)
            kept, new = [], []
            for ordinal, pair in enumerate(chunks):
                if old.get(pair):
                    kept.append((ordinal, sealed[ordinal], old[pair].pop(0).id))
                else:
                    new.append((ordinal, pair))
            missing = [pair for _, pair in new if pair not in vectors]
            if missing:
                raise NeedsVectors(missing)
            removed = [chunk for left in old.values() for chunk in left]
            db.execute(
                "INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT (doc_id) DO UPDATE SET source = "
                "excluded.source, title = excluded.title, content_hash = excluded.content_hash, "
                "metadata = excluded.metadata",
                row_of(document, self._database.is_sealed),
            )
            db.executemany("DELETE FROM chunks WHERE id = ?", [(chunk.id,) for chunk in removed])
            db.executemany("UPDATE chunks SET ordinal = ?, page_label = ? WHERE id = ?", kept)
            db.executemany(
                "INSERT INTO chunks (doc_id, ordinal, title, text, page_label, rendering, embedding) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        document.doc_id,
                        ordinal,
                        title,
                        text,
                        sealed[ordinal],
                        rendering(title, text),
                        blob_of(vectors[title, text], document.doc_id, self._database.is_sealed),
                    )
                    for ordinal, (title, text) in new
                ],
            )
        return Swap(len(kept), len(new), len(removed))

    def remove_document(self, doc_id: str) -> int:
        """Take a document out; return how many chunks it had, 0 where it was not there."""
        with self._writing() as db:
            query = "SELECT count(*) FROM chunks WHERE doc_id = ?"
            n_chunks: int = db.execute(query, (doc_id,)).fetchone()[0]
            db.execute("DELETE FROM documents WHERE doc_id = ?", (doc_id,))  # its chunks go with it
        return n_chunks

    def compact(self) -> None:
        """Take texts that were removed, and forgotten as gone, out of all of the store's files."""
        with self._database.deriving() as db:
            lexical.optimize(db)
        self._database.compact()

    def forget_gone(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Strike these off ``gone``, and with them all that are in use again."""
        with self._writing() as db:
            db.executemany("DELETE FROM gone WHERE rendering = ?", [(rendering(*pair),) for pair in pairs])
            db.execute("DELETE FROM gone WHERE rendering IN (SELECT rendering FROM chunks)")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Write as the only one of all writers. What a prompt format was called
        formerly is replaced in the manifest."""
        self._database.make_room_for_page_labels()
        with self._database.writing() as db:
            if self.manifest.prompt_format != self._prompt_format:
                renewed = replace(self.manifest, prompt_format=self._prompt_format)
                with contextlib.suppress(OSError):  # the former name does as well
                    renewed.write(self.folder)
                    self.manifest = renewed
            yield db

    def _refresh(self) -> None:
        """Make the index show the database as the transaction around sees it."""
        db = self._database.connection
        generation = schema.generation(db)
        if generation == self._indexed:
            return
        stored = {row[0] for row in db.execute("SELECT id FROM chunks")}
        self._index.remove(self._index.ids - stored)
        missing = sorted(stored - self._index.ids)
        for start in range(0, len(missing), 1000):
            ids = missing[start : start + 1000]
            rows = db.execute(
                f"SELECT id, doc_id, embedding FROM chunks WHERE id IN ({','.join('?' * len(ids))})", ids
            ).fetchall()
            if len(rows) != len(ids):
                raise DamagedRow("chunks have lost their rows")
            self._index.add([i for i, *_ in rows], vectors_of(rows, self.manifest.dimension, self._database.is_sealed))
        self._indexed = generation

    @classmethod
    def _create(
        cls, folder: Path, engine: "SegmentEngine", embedder: Embedder, chunk_tokens: int, chunk_overlap: int
    ) -> None:
        """Make the database first, the manifest last: that is what makes a folder a store."""
        check_sizes(chunk_tokens, chunk_overlap, engine.context_length)
        database = folder / SQLITE
        if schema.n_documents(database):
            raise StoreDamaged(f"{folder} has {SQLITE} with documents but no {FILE}. {how_to_rebuild(folder)}")
        manifest = Manifest(
            store_id=uuid.uuid4().hex,
            model=opens_again(engine),
            model_fingerprint=engine.fingerprint,
            prompt_format=engine.format.version,
            embedder=embedder.name,
            embedder_fingerprint=embedder.fingerprint,
            dimension=embedder.dimension,
            chunk_tokens=chunk_tokens,
            chunk_overlap=chunk_overlap,
        )
        for leftover in (database, *(folder / f"{SQLITE}{end}" for end in ("-wal", "-shm", "-journal"))):
            leftover.unlink(missing_ok=True)  # of a creation that was killed: no manifest, no documents
        schema.create(database, manifest.store_id)
        manifest.write(folder)
