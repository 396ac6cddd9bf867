"""The store: index and texts never disagree, ids are never used again, and damage is told."""

import copy
import json
import sqlite3

import numpy as np
import pytest
from fake_engine import FakeEmbedder, FakeEngine

from hypic_rag.errors import BadInput, StoreDamaged, StoreMismatch
from hypic_rag.prompt import PromptFormat
from hypic_rag.retrieval.store import NeedsVectors, Store, StoredDocument


def put(store, doc_id, *texts, title="T", metadata=None):
    pairs = [(title, text) for text in texts]
    vectors = dict(zip(pairs, store.embedder.embed(texts), strict=True))
    document = StoredDocument(doc_id, f"/docs/{doc_id}", title, "hash", metadata or {})
    return store.swap_document(document, pairs, vectors)


def ask(store, question, k=5):
    return [(found.chunk.doc_id, found.chunk.text) for found in store.search(store.embedder.embed_query(question), k)]


def test_the_nearest_chunks_come_first_with_their_cosines(store):
    put(store, "a", "ships in the harbour", "bread and flour", metadata={"year": 1999})
    put(store, "b", "a harbour for old ships")
    query = store.embedder.embed_query("old ships")

    found = store.search(query, 2)

    assert [one.chunk.text for one in found] == ["a harbour for old ships", "ships in the harbour"]
    expected = [float(query @ store.embedder.embed([one.chunk.text])[0]) for one in found]
    assert [one.similarity for one in found] == pytest.approx(expected, abs=1e-6)
    assert found[1].metadata == {"year": 1999}
    assert len(store.search(query, 50)) == 3
    assert store.counts() == (2, 3)


def test_a_new_version_keeps_equal_chunks_with_their_ids(store):
    put(store, "a", "one", "two", "three")
    before = {chunk.text: chunk.id for chunk in store.chunks("a")}

    swap = put(store, "a", "zero", "three", "one")

    assert (swap.n_kept, swap.n_added, swap.n_removed) == (2, 1, 1)
    after = store.chunks("a")
    assert [chunk.text for chunk in after] == ["zero", "three", "one"]
    assert [chunk.ordinal for chunk in after] == [0, 1, 2]
    assert (after[1].id, after[2].id) == (before["three"], before["one"])
    assert after[0].id > max(before.values())
    assert ask(store, "two", 9) and "two" not in [text for _, text in ask(store, "two", 9)]


def test_ids_are_not_used_again_after_all_chunks_are_gone(store):
    put(store, "a", "one", "two")
    last = max(chunk.id for chunk in store.chunks())
    store.remove_document("a")
    assert store.search(store.embedder.embed_query("one"), 3) == []
    put(store, "b", "two")
    assert store.chunks()[0].id > last
    assert ask(store, "two") == [("b", "two")]


def test_equal_chunks_in_one_document_are_both_kept(store):
    put(store, "a", "same", "same", "other")
    assert put(store, "a", "same", "same").n_kept == 2
    assert [chunk.text for chunk in store.chunks("a")] == ["same", "same"]


def test_a_swap_without_a_vector_changes_nothing(store):
    put(store, "a", "one")
    with pytest.raises(NeedsVectors) as missing:
        store.swap_document(StoredDocument("a", "s", "T", "h", {}), [("T", "one"), ("T", "two")], {})
    assert missing.value.texts == (("T", "two"),)
    assert [chunk.text for chunk in store.chunks("a")] == ["one"]


def test_what_is_gone_is_known_until_it_is_forgotten(store):
    put(store, "a", "one", "two")
    put(store, "b", "two")
    store.remove_document("a")
    assert store.gone() == [("T", "one")]  # "two" is in b
    store.forget_gone(store.gone())
    assert store.gone() == []
    store.remove_document("b")
    assert store.gone() == [("T", "two")]
    put(store, "c", "two")
    assert store.gone() == []


def test_another_process_is_seen_at_the_next_search(store, folder):
    put(store, "a", "ships")
    assert ask(store, "harbour ships") == [("a", "ships")]
    with Store.open(folder, embedder=store.embedder) as other:
        put(other, "b", "harbour ships")
        other.remove_document("a")
    assert ask(store, "harbour ships") == [("b", "harbour ships")]


def test_everything_is_there_after_opening_again(store, folder):
    put(store, "a", "ships", "bread", metadata={"tags": ["x", "é"]})
    with Store.open(folder, embedder=store.embedder) as again:
        assert again.manifest == store.manifest
        assert again.chunks() == store.chunks() and again.documents() == store.documents()
        assert ask(again, "bread", 1) == [("a", "bread")]


def test_an_existing_store_keeps_its_sizes_and_embedder(store, folder, engine, embedder):
    with Store.create_or_open(folder, engine, embedder=embedder) as again:
        assert again.manifest.chunk_tokens == 64
    with pytest.raises(StoreMismatch, match=r"chunks of 64 tokens, but 512 was asked for"):
        Store.create_or_open(folder, engine, embedder=embedder, chunk_tokens=512)


def test_another_model_is_refused_with_both_names(store, folder, embedder):
    other = FakeEngine(fingerprint="e" * 64)
    other.model_name = "other/model"
    with pytest.raises(
        StoreMismatch, match=r"made with model fake/model .*in use is other/model .*Use --model fake/model"
    ):
        Store.create_or_open(folder, other, embedder=embedder)


def test_other_weights_of_the_same_model_are_told_with_the_command(store, folder, embedder):
    """As every user meets it who upgrades to another version of the default model."""
    upgraded = FakeEngine(fingerprint="e" * 64)
    told = (
        r"made with other weights of the model fake/model \(fingerprint ffffffffffff\) than it has now \(fingerprint "
        r"eeeeeeeeeeee\), as an upgrade brings.* one command: hypic-rag ingest "
    )
    with pytest.raises(StoreMismatch, match=told):
        Store.create_or_open(folder, upgraded, embedder=embedder)
    assert Store.open(folder, embedder=embedder).manifest == store.manifest  # nothing was changed


def test_another_embedder_is_refused_with_both_names(store, folder):
    with pytest.raises(
        StoreMismatch, match=r"embedder fake-embedder .*in use is another .*Use --embedder fake-embedder"
    ):
        Store.open(folder, embedder=FakeEmbedder("another"))


def test_another_prompt_format_is_refused(store, engine):
    engine.format.version = "template:0"
    with pytest.raises(StoreMismatch, match=r"prompt format template:\w{16}, .*now has template:0"):
        store.check_engine(engine)


FORMER = "chat-template:a095409b94e0225b"  # what the default model's prompt format was called formerly


def called(folder, name=None):
    """The store's prompt format, after it got this name."""
    manifest = json.loads((folder / "store.json").read_text())
    if name is not None:
        (folder / "store.json").write_text(json.dumps({**manifest, "prompt_format": name}))
    return manifest["prompt_format"]


def test_a_store_of_the_former_name_opens_and_has_the_new_one_after_a_write(store, folder, engine, embedder):
    put(store, "a", "ships")
    called(folder, FORMER)
    with Store.create_or_open(folder, engine, embedder=embedder) as former:
        assert ask(former, "ships") == [("a", "ships")]
        assert called(folder) == FORMER  # nothing was written
        put(former, "b", "bread")
        assert called(folder) == former.manifest.prompt_format == engine.format.version
    with Store.create_or_open(folder, engine, embedder=embedder) as again:
        assert again.counts() == (2, 2)


def test_a_former_name_that_cannot_be_changed_does_as_well(store, folder, engine, embedder, monkeypatch):
    called(folder, FORMER)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with Store.create_or_open(folder, engine, embedder=embedder) as former:
        for doc_id in ("a", "b"):
            put(former, doc_id, "ships")
        assert former.counts() == (2, 2)
    assert called(folder) == FORMER and not list(folder.glob("*.tmp"))


def test_a_template_with_a_date_is_the_same_every_day(store, folder, engine, embedder):
    engine.tokenizer = copy.copy(engine.tokenizer)
    engine.tokenizer.chat_template = "{{ strftime_now('%Y') }}" + engine.tokenizer.chat_template
    engine.format = PromptFormat(engine.tokenizer)
    called(folder, "chat-template:" + "0" * 16)  # of some day
    with Store.create_or_open(folder, engine, embedder=embedder) as dated:
        put(dated, "a", "ships")
    assert called(folder) == engine.format.version
    engine.format = PromptFormat(engine.tokenizer)
    Store.create_or_open(folder, engine, embedder=embedder).close()


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def break_rows(statement):
    def damage(folder):
        with sqlite3.connect(folder / "store.sqlite") as connection:
            connection.execute(statement)
        connection.close()

    return damage


def change_manifest(**changes):
    def damage(folder):
        fields = json.loads((folder / "store.json").read_text())
        (folder / "store.json").write_text(json.dumps({**fields, **changes}))

    return damage


DAMAGE = {  # what is done to the folder, what the message says
    "no database": (lambda f: (f / "store.sqlite").unlink(), "has store.json but no store.sqlite"),
    "no manifest": (
        lambda f: (f / "store.json").unlink(),
        "has store.sqlite with documents but no store.json",
    ),
    "half a database": (lambda f: truncate(f / "store.sqlite"), "is damaged: "),
    "garbage database": (lambda f: (f / "store.sqlite").write_bytes(b"garbage " * 600), "is damaged: "),
    "empty database": (lambda f: (f / "store.sqlite").write_bytes(b""), "is damaged: it has no chunk_gone"),
    "half a manifest": (lambda f: truncate(f / "store.json"), "store.json cannot be read"),
    "a list for a manifest": (lambda f: (f / "store.json").write_text("[]"), "store.json cannot be read"),
    "manifest of another store": (change_manifest(store_id="another"), "belongs to store"),
    "chunks without document": (break_rows("DELETE FROM documents"), "2 chunks without their document"),
    "half a vector": (break_rows("UPDATE chunks SET embedding = x'00ff' WHERE ordinal = 1"), "wrong length"),
    "a vector that is no number": (
        break_rows("UPDATE chunks SET embedding = CAST(x'0000c07f' || substr(embedding, 5) AS BLOB) WHERE ordinal = 1"),
        "vector of chunk 2, or its document, is not what was stored",
    ),
    "a word for the dimension": (change_manifest(dimension="x"), "store.json cannot be read: its dimension is 'x'"),
    "a word for the size": (change_manifest(chunk_tokens="x"), "store.json cannot be read: its chunk_tokens is 'x'"),
}


@pytest.mark.parametrize("damage, message", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("how", ["open", "create_or_open"])
def test_damage_is_told_with_what_to_do(folder, engine, embedder, damage, message, how):
    with Store.create_or_open(folder, engine, embedder=embedder) as store:
        put(store, "a", "ships", "bread")
    damage(folder)
    with pytest.raises(StoreDamaged, match=message) as raised:
        Store.open(folder, embedder=embedder) if how == "open" else Store.create_or_open(
            folder, engine, embedder=embedder
        )
    assert "ingest" in str(raised.value) and ("away" in str(raised.value) or "together" in str(raised.value))


@pytest.mark.parametrize(
    "statement, message",
    [
        ("UPDATE documents SET metadata = '{\"path'", "metadata are not what was stored"),
        ("UPDATE documents SET metadata = '[]'", "metadata are not what was stored"),
        ("UPDATE documents SET metadata = CAST(x'ff' AS TEXT)", "is damaged: Could not decode"),
    ],
)
def test_damaged_metadata_are_told_with_what_to_do(store, folder, statement, message):
    put(store, "a", "ships")
    break_rows(statement)(folder)
    for read in (lambda: ask(store, "ships"), store.documents, lambda: store.document("a")):
        with pytest.raises(StoreDamaged, match=f"(?s){message}.*away and ingest"):
            read()


@pytest.mark.parametrize("how", ["open", "create_or_open"])
def test_a_locked_database_without_manifest_is_kept(folder, engine, embedder, monkeypatch, how):
    with Store.create_or_open(folder, engine, embedder=embedder) as store:
        put(store, "a", "ships")
    (folder / "store.json").unlink()
    connect = sqlite3.connect
    holder = connect(folder / "store.sqlite", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("UPDATE info SET value = value")  # in WAL mode this keeps readers out too
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **{**options, "timeout": 0}))
    try:
        with pytest.raises(BadInput, match=r"cannot be read: database is locked.*try again"):
            Store.open(folder) if how == "open" else Store.create_or_open(folder, engine, embedder=embedder)
    finally:
        holder.close()
    with pytest.raises(StoreDamaged, match=r"with documents but no store\.json"):
        Store.open(folder)


def test_another_version_is_refused(store, folder):
    fields = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**fields, "version": 99}))
    with pytest.raises(StoreMismatch, match="version 99, this program reads version 1"):
        Store.open(folder)


def test_a_creation_that_was_killed_before_its_manifest_is_begun_again(folder, engine, embedder):
    Store.create_or_open(folder, engine, embedder=embedder).close()
    (folder / "store.json").unlink()
    with pytest.raises(BadInput, match="no store in"):
        Store.open(folder, embedder=embedder)
    with Store.create_or_open(folder, engine, embedder=embedder) as store:
        put(store, "a", "ships")
        assert ask(store, "ships") == [("a", "ships")]


def test_a_folder_without_a_store_says_how_to_make_one(tmp_path):
    with pytest.raises(BadInput, match="hypic-rag ingest"):
        Store.open(tmp_path)


def test_a_place_that_cannot_be_a_store_is_told(tmp_path, engine, embedder):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="no store can be made in"):
        Store.create_or_open(tmp_path / "file" / "store", engine, embedder=embedder)


def test_vectors_come_back_bit_for_bit(store):
    put(store, "a", "ships in the harbour")
    with store._database.reading() as db:
        blob = db.execute("SELECT embedding FROM chunks").fetchone()[0][:-4]  # without its seal
    np.testing.assert_array_equal(np.frombuffer(blob, "<f4"), store.embedder.embed(["ships in the harbour"])[0])
