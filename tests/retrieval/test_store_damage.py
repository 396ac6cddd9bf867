"""A damaged store.sqlite answers as it was, or says that it is damaged: never with what nobody stored."""

import random
import sqlite3

import pytest
from fake_engine import FakeEmbedder, FakeEngine

from hypic_rag.errors import BadInput, HypicError, StoreDamaged
from hypic_rag.retrieval.store import Store, StoredDocument

QUESTIONS = ("old ships", "bread", "the mill")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a store with two documents, closed; what it answers."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    with Store.create_or_open(folder, FakeEngine(), embedder=FakeEmbedder(), chunk_tokens=64) as store:
        for name, texts in {"a": ("ships in the harbour", "bread and flour"), "b": ("the mill", "old ships")}.items():
            vectors = dict(zip([("T", text) for text in texts], store.embedder.embed(texts), strict=True))
            document = StoredDocument(name, f"/docs/{name}", "T", "hash", {"year": 1999})
            store.swap_document(document, [("T", text) for text in texts], vectors)
        store.compact()
        return folder, answers(store)


def answers(store):
    found = [store.search(store.embedder.embed_query(question), 3) for question in QUESTIONS]
    return [
        [(one.chunk.title, one.chunk.text, one.metadata, one.similarity) for one in each] for each in found
    ], store.documents()


def asked(folder, data):
    """What a store of these bytes answers."""
    (folder / "store.sqlite").write_bytes(data)
    for suffix in ("-wal", "-shm"):
        (folder / f"store.sqlite{suffix}").unlink(missing_ok=True)
    with Store.open(folder, embedder=FakeEmbedder()) as store:
        return answers(store)


def changed(folder, *statements):
    """The file after these, past what its tables demand of their columns."""
    db = sqlite3.connect(folder / "store.sqlite")
    was = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL").fetchall()
    for relax in (True, False):
        db.execute("PRAGMA writable_schema = ON")
        for name, sql in was:
            new = sql.replace(" NOT NULL", "") if relax else sql
            db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (new, name))
        db.commit()
        db.close()
        db = sqlite3.connect(folder / "store.sqlite")
        for statement in statements if relax else ():
            db.execute(statement)
        db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return (folder / "store.sqlite").read_bytes()


@pytest.fixture
def folder(whole, tmp_path):
    for name in ("store.json", "store.sqlite"):
        (tmp_path / name).write_bytes((whole[0] / name).read_bytes())
    return tmp_path


CHANGES = [
    *[f"UPDATE documents SET {name} = {value}" for name in ("source", "title", "content_hash", "metadata")
      for value in ("NULL", "x'00'", "'other'")],
    *[f"UPDATE chunks SET {name} = {value}" for name in ("title", "text", "rendering", "embedding", "doc_id")
      for value in ("NULL", "'other'")],
    "UPDATE chunks SET ordinal = 'x'", "UPDATE documents SET metadata = replace(metadata, '1999', '2001')",
    "UPDATE chunks SET text = 'the barn' WHERE text = 'the mill'",
    "UPDATE chunks SET doc_id = (SELECT min(doc_id) FROM documents)",
    "UPDATE chunks SET embedding = CAST(x'01' || substr(embedding, 2) AS BLOB)",
    "UPDATE chunks SET embedding = CAST(substr(embedding, 5) AS BLOB)",
    "UPDATE info SET value = NULL WHERE name = 'generation'", "DELETE FROM info WHERE name = 'generation'",
    "UPDATE info SET value = 'x' WHERE name = 'version'", "DROP TABLE gone", "DROP TRIGGER chunk_gone",
    "DROP TABLE info", "DROP INDEX chunks_by_rendering",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_that_was_not_stored_is_told(folder, change):
    data = changed(folder, change)
    with pytest.raises(StoreDamaged, match=r"(?s)store\.sqlite.*(away and ingest|ingest again)"):
        asked(folder, data)


def test_a_store_that_is_whole_is_not_called_damaged(whole, folder):
    assert asked(folder, changed(folder)) == whole[1]


def test_random_damage_gives_the_same_answers_or_one_sentence(whole, folder):
    data = (folder / "store.sqlite").read_bytes()
    chance = random.Random(0)
    n_told = 0
    for n in range(120):
        damaged = bytearray(data)
        at = chance.randrange(len(data))
        if n % 3 == 0:
            damaged[at] ^= 1 << chance.randrange(8)
        elif n % 3 == 1:
            damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
        else:
            del damaged[at:]
        try:
            assert asked(folder, damaged) == whole[1]
        except HypicError:
            n_told += 1
    assert 40 < n_told < 110


def test_a_store_of_version_1_is_read_and_written(folder):
    """It has no seals."""
    sealed = "UPDATE chunks SET embedding = CAST(substr(embedding, 1, length(embedding) - 4) AS BLOB)"
    metadata = "UPDATE documents SET metadata = substr(metadata, 1, length(metadata) - 8)"
    asked(folder, changed(folder, sealed, metadata, "UPDATE info SET value = 1 WHERE name = 'version'"))
    with Store.open(folder, embedder=FakeEmbedder()) as store:
        vectors = {("T", "a barn"): store.embedder.embed(["a barn"])[0]}
        store.swap_document(StoredDocument("c", "/docs/c", "T", "hash", {"n": 1}), [("T", "a barn")], vectors)
    with Store.open(folder, embedder=FakeEmbedder()) as store:
        assert store.search(store.embedder.embed_query("a barn"), 1)[0].metadata == {"n": 1}
        assert store.document("a").metadata == {"year": 1999}


def test_a_full_disk_gives_no_store_and_says_so(tmp_path, monkeypatch):
    def full(*arguments):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("hypic_rag.retrieval.schema.create", full)
    with pytest.raises(BadInput, match=r"no store can be made.*disk is full"):
        Store.create_or_open(tmp_path / "store", FakeEngine(), embedder=FakeEmbedder())
