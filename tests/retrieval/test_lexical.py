"""The lexical index ranks as BM25 does, follows every change of the chunks, and leaves no word of what is gone."""

import math
import random
import shutil
import sqlite3

import pytest
from fake_engine import FakeEmbedder
from ordinary_user import ordinary_user

from hypic_rag.retrieval import lexical
from hypic_rag.retrieval.store import Store, StoredDocument

WORDS = [f"w{i}x" for i in range(30)]  # which no stemmer knows


def put(store, doc_id, *pairs):
    vectors = dict(zip(pairs, store.embedder.embed([text for _, text in pairs]), strict=True))
    store.swap_document(StoredDocument(doc_id, f"/docs/{doc_id}", "", "hash", {}), pairs, vectors)


def found(store, question, k=50, method="lexical"):
    return [one.chunk.text for one in store.search(store.embedder.embed_query(question), k, question, method)]


def bm25(pairs, question):
    """Okapi BM25 of (title, text) pairs, k1 1.2 and b 0.75, of those that have a word of the question."""
    rows = [(title.split(), text.split()) for title, text in pairs]
    mean = sum(len(title) + len(text) for title, text in rows) / len(rows)
    scores = {}
    for word in set(question.split()):
        n = sum(word in title or word in text for title, text in rows)
        idf = max(1e-6, math.log((len(rows) - n + 0.5) / (n + 0.5)))
        for i, (title, text) in enumerate(rows):
            if f := lexical.TITLE_WEIGHT * title.count(word) + text.count(word):
                norm = 1 - 0.75 + 0.75 * (len(title) + len(text)) / mean
                scores[i] = scores.get(i, 0.0) + idf * f * 2.2 / (f + 1.2 * norm)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


@pytest.mark.parametrize("seed", range(4))
def test_it_ranks_as_bm25_of_the_chunks_that_are_there(store, seed):
    chance = random.Random(seed)

    def some_pairs(n):
        return [(" ".join(chance.choices(WORDS, k=2)), " ".join(chance.choices(WORDS, k=chance.randint(3, 40))))
                for _ in range(n)]  # fmt: skip

    put(store, "a", *some_pairs(20))
    put(store, "b", *some_pairs(20))
    store.remove_document("a")
    last = some_pairs(25)
    put(store, "b", *last)
    for _ in range(10):
        question = " ".join(chance.choices(WORDS, k=4))
        expected = bm25(last, question)
        texts = found(store, question)
        score_of = {last[i][1]: score for i, score in expected}
        assert sorted(texts) == sorted(score_of)
        assert [score_of[text] for text in texts] == pytest.approx([score for _, score in expected], abs=1e-9)


QUESTIONS = {
    "a stem": ("when were the ships built?", ["the ship was built in 1871"]),
    "without accents": ("koln", ["Köln lies on the Rhine"]),
    "FTS5's own words": ('NEAR OR "AND" * ^ NOT title:', ["nearness and the like"]),
    "an identifier": ("what is ERR_4711-b?", ["ERR_4711-b means that the disk is full"]),
    "no word": ("?!", []),
    "no word that is there": ("zebras", []),
}  # fmt: skip


@pytest.mark.parametrize("question, expected", QUESTIONS.values(), ids=QUESTIONS)
def test_what_is_found(store, question, expected):
    texts = ["the ship was built in 1871", "Köln lies on the Rhine", "nearness and the like",
             "ERR_4711-b means that the disk is full"]  # fmt: skip
    put(store, "a", *[("", text) for text in texts])
    assert [text for text in found(store, question) if text in expected] == expected
    assert bool(found(store, question)) == bool(expected)


def test_common_words_are_not_looked_for_unless_there_are_no_others(store, monkeypatch):
    monkeypatch.setattr(lexical, "COMMON_CHUNKS", 2)
    put(store, "a", *[("", text) for text in ("the bread", "the mill", "the ships", "the harbour")])
    assert found(store, "the mill") == ["the mill"]
    assert len(found(store, "the")) == 4


def without_index(folder):
    """What an earlier version made."""
    with sqlite3.connect(folder / "store.sqlite") as db:
        for trigger in lexical.TRIGGERS:
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("DROP TABLE lexical")
    db.close()


DAMAGE = {
    "no index": None,
    "a trigger less": "DROP TRIGGER lexical_insert",
    "words of a chunk that is not there": "INSERT INTO lexical (rowid, title, text) VALUES (99, '', 'zebras')",
    "words that a chunk does not have": "INSERT INTO lexical (rowid, title, text) VALUES (1, '', 'zebras')",
    "no words": "INSERT INTO lexical (lexical) VALUES ('delete-all')",
    "garbage": "UPDATE lexical_data SET block = x'00010203' WHERE id > 10",
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_an_index_that_is_missing_or_wrong_is_made_again(store, folder, change):
    put(store, "a", ("", "old ships"), ("", "bread and flour"))
    store.close()
    if change is None:
        without_index(folder)
    else:
        with sqlite3.connect(folder / "store.sqlite") as db:
            db.execute(change)
        db.close()
    with Store.open(folder, embedder=FakeEmbedder()) as again:
        assert found(again, "zebras") == []
        assert found(again, "ships") == ["old ships"]
        put(again, "b", ("", "ships of the line"))
        assert sorted(found(again, "ships")) == ["old ships", "ships of the line"]


@pytest.mark.parametrize("has_index", [True, False])
def test_a_store_that_cannot_be_written_is_read(store, folder, has_index):
    put(store, "a", ("", "old ships"), ("", "bread and flour"))
    store.compact()
    store.close()
    if not has_index:
        without_index(folder)
    for end in ("-wal", "-shm"):
        (folder / f"store.sqlite{end}").unlink(missing_ok=True)
    (folder / "store.sqlite").chmod(0o400)
    folder.chmod(0o500)
    try:
        with ordinary_user(), Store.open(folder, embedder=FakeEmbedder()) as again:
            assert found(again, "ships") == (["old ships"] if has_index else [])
            assert found(again, "old ships", 1, "hybrid") == ["old ships"]
    finally:
        folder.chmod(0o700)


def test_a_compacted_store_has_no_word_of_what_was_removed(store, folder):
    put(store, "a", ("", "quicksilver and brimstone"))
    put(store, "b", ("", "bread"))
    store.remove_document("a")
    store.forget_gone(store.gone())
    store.compact()
    for file in folder.glob("store.sqlite*"):
        data = file.read_bytes()
        assert not any(word in data for word in (b"quicksilv", b"brimston", b"uicksilv")), file
    assert found(store, "quicksilver") == []


def test_several_processes_may_make_the_index(store, folder, tmp_path):
    put(store, "a", ("", "old ships"))
    store.close()
    without_index(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    with Store.open(copy, embedder=FakeEmbedder()) as one, Store.open(copy, embedder=FakeEmbedder()) as other:
        assert found(one, "ships") == found(other, "ships") == ["old ships"]
