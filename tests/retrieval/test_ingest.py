"""Ingestion: only what changed is done, old versions answer until the new ones are in, budgets hold."""

import json
from dataclasses import replace

import pytest
from fake_engine import FakeEmbedder, FakeEngine, in_mode

from hypic_rag.cache import SegmentCache
from hypic_rag.errors import BadInput, StoreMismatch
from hypic_rag.retrieval import chunking
from hypic_rag.retrieval import plan as plan_module
from hypic_rag.retrieval.ingest import plan_again, plan_ingest, run_ingest
from hypic_rag.retrieval.segments import FILE_OVERHEAD
from hypic_rag.retrieval.store import Store

HARBOUR = " ".join(f"Pier {i} of the harbour of Vardal was built of grey stone in {1870 + i}." for i in range(1, 7))
BREAD = " ".join(f"Bread {i} is baked from flour, water and {i} grams of salt in an oven." for i in range(1, 7))


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "harbour.txt").write_text(HARBOUR)
    (folder / "bread.md").write_text(f"# Baking\n\n{BREAD}")
    return folder


def ingest(store, engine, *paths, prefill="all"):
    engine.prefilled.clear()
    store.embedder.embedded.clear()
    plan = plan_ingest(store, engine, paths)
    return plan, run_ingest(plan, prefill)


def names(planned):
    return sorted(one.document.doc_id.rsplit("/")[-1] for one in planned)


def documents_prefilled(engine):
    return [ids for ids in engine.prefilled if ids != engine.format.leading()]


def test_the_plan_says_what_will_happen_and_the_report_that_it_did(store, engine, docs):
    plan, report = ingest(store, engine, docs)

    assert names(plan.of("new")) == ["bread.md", "harbour.txt"]
    segments = [engine.format.document(chunk.text, chunk.title) for chunk in store.chunks()]
    assert plan.n_chunks == plan.n_segments == len(segments) >= 4
    assert plan.prefill_tokens == sum(map(len, segments)) == report.prefill_tokens
    assert plan.forecast_bytes == sum(engine.entry_bytes(len(ids)) + FILE_OVERHEAD for ids in segments)
    assert plan.fits
    assert (report.n_new, report.n_chunks_added, report.n_prefilled, report.n_cold) == (
        2,
        len(segments),
        len(segments),
        0,
    )
    assert all(engine.cache.contains(engine.segment_key(ids)) for ids in segments)
    assert engine.cache.stats().tiers["disk"].nbytes <= plan.forecast_bytes + FILE_OVERHEAD  # the system text's
    assert engine.cache.contains(engine.segment_key(engine.format.leading(), "leading"))


def test_segments_are_prefilled_many_in_a_call(store, engine, docs):
    for i in range(40):
        (docs / f"more{i}.txt").write_text(f"Number {i}. {HARBOUR}")
    plan, _ = ingest(store, engine, docs)
    calls = engine.calls[:-1]  # the last is the system text
    assert max(calls) <= 4096
    assert len(calls) <= plan.prefill_tokens / 4096 * 1.5 + 1


def test_a_second_run_does_nothing(store, engine, docs):
    ingest(store, engine, docs)
    chunks = store.chunks()
    plan, report = ingest(store, engine, docs)
    assert plan.is_empty and len(plan.of("unchanged")) == 2
    assert (engine.prefilled, store.embedder.embedded) == ([], [])
    assert (report.n_unchanged, report.n_chunks_added, report.n_prefilled) == (2, 0, 0)
    assert store.chunks() == chunks


def test_of_a_changed_document_only_new_chunks_are_made(store, engine, docs):
    ingest(store, engine, docs)
    before = {chunk.text: chunk.id for chunk in store.chunks()}
    (docs / "harbour.txt").write_text(HARBOUR + "A lighthouse was added in 1902, and it is red. " * 3)

    plan, report = ingest(store, engine, docs)

    assert names(plan.of("changed")) == ["harbour.txt"] and names(plan.of("unchanged")) == ["bread.md"]
    new = [chunk for chunk in store.chunks() if chunk.text not in before]
    assert 0 < len(new) < len(store.chunks())
    assert documents_prefilled(engine) == [engine.format.document(chunk.text, chunk.title) for chunk in new]
    assert len(store.embedder.embedded) == len(new) == report.n_chunks_added
    assert all(before[c.text] == c.id for c in store.chunks() if c.text in before)


def test_segments_of_removed_text_leave_the_cache_unless_another_chunk_has_them(store, engine, docs):
    (docs / "copy").mkdir()
    (docs / "copy" / "bread.md").write_text(f"# Baking\n\n{BREAD}")  # the same title and text elsewhere
    ingest(store, engine, docs)
    keys = {chunk.doc_id: [] for chunk in store.chunks()}
    for chunk in store.chunks():
        keys[chunk.doc_id].append(engine.segment_key(engine.format.document(chunk.text, chunk.title)))
    (docs / "harbour.txt").unlink()
    (docs / "bread.md").unlink()

    _, report = ingest(store, engine, docs)

    assert report.n_removed == 2 and [d.doc_id for d in store.documents()] == [str(docs / "copy" / "bread.md")]
    assert all(engine.cache.contains(key) is None for key in keys[str(docs / "harbour.txt")])
    assert all(engine.cache.contains(key) for key in keys[str(docs / "bread.md")])
    assert store.search(store.embedder.embed_query("harbour stone"), 99) and all(
        "harbour" not in one.chunk.text for one in store.search(store.embedder.embed_query("harbour stone"), 99)
    )


def test_a_renamed_file_is_not_prefilled_again(store, engine, docs):
    (docs / "bread.md").rename(docs / "baking.md")
    ingest(store, engine, docs)
    (docs / "baking.md").rename(docs / "bread.md")
    plan, report = ingest(store, engine, docs)
    assert (report.n_new, report.n_removed) == (1, 1)
    assert documents_prefilled(engine) == [] and plan.n_segments == 0
    assert all(
        engine.cache.contains(engine.segment_key(engine.format.document(c.text, c.title))) for c in store.chunks()
    )


def test_where_only_metadata_changed_only_the_row_is_updated(store, engine, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": "a", "title": "Harbour", "text": HARBOUR, "year": 1871}))
    ingest(store, engine, file)
    chunks = store.chunks()
    file.write_text(json.dumps({"id": "a", "title": "Harbour", "text": HARBOUR, "year": 1872}))

    plan, report = ingest(store, engine, file)

    assert len(plan.of("metadata")) == report.n_metadata == 1
    assert (engine.prefilled, store.embedder.embedded) == ([], [])
    assert store.chunks() == chunks and store.documents()[0].metadata["year"] == 1872


def test_rows_that_left_a_file_leave_the_store(store, engine, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [json.dumps({"id": name, "title": name, "text": f"{name}. {BREAD}"}) for name in "abc"]
    file.write_text("\n".join(rows))
    ingest(store, engine, file)
    file.write_text("\n".join(rows[::2]))
    _, report = ingest(store, engine, file)
    assert report.n_removed == 1 and [d.title for d in store.documents()] == ["a", "c"]


def test_rows_that_get_ids_are_neither_prefilled_again_nor_held(store, engine, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [{"title": name, "text": f"{name}. {BREAD}"} for name in "abc"]
    file.write_text("\n".join(map(json.dumps, rows)))
    ingest(store, engine, file)
    file.write_text("\n".join(json.dumps({"id": row["title"], **row}) for row in rows))
    _, report = ingest(store, engine, file)
    assert (report.n_new, report.n_removed, report.held) == (3, 3, ())
    assert documents_prefilled(engine) == []


def test_what_is_gone_altogether_leaves_the_store(store, engine, docs):
    """A file named on its own, then the folder's last files: each was in the store, so each is a removal."""
    ingest(store, engine, docs)
    n = len(store.documents())
    (docs / "harbour.txt").unlink()
    _, report = ingest(store, engine, docs / "harbour.txt")
    assert report.n_removed == 1 and len(store.documents()) == n - 1
    for file in docs.iterdir():
        file.unlink()
    _, report = ingest(store, engine, docs)
    assert report.n_removed == n - 1 and not store.documents()
    with pytest.raises(BadInput, match="nothing to read"):  # nothing there, and nothing of it in the store
        ingest(store, engine, docs)


def test_chunks_beyond_the_context_are_refused_before_a_store_is_made(tmp_path, embedder, engine):
    with pytest.raises(BadInput, match="--chunk-tokens"):
        Store.create_or_open(tmp_path / "new", engine, embedder=embedder, chunk_tokens=engine.context_length)
    Store.create_or_open(tmp_path / "new", engine, embedder=embedder, chunk_tokens=64).close()


def test_documents_from_elsewhere_stay(store, engine, docs, tmp_path):
    other = tmp_path / "docs-of-others"  # its name begins like that of docs
    other.mkdir()
    (other / "note.txt").write_text(BREAD)
    ingest(store, engine, other)
    _, report = ingest(store, engine, docs)
    assert report.n_removed == 0 and store.counts()[0] == 3


def test_a_file_that_cannot_be_read_keeps_its_old_version_and_stops_nothing(store, engine, docs):
    ingest(store, engine, docs)
    (docs / "harbour.txt").write_bytes("Кириллица в другой кодировке. ".encode("cp1251") * 9)
    (docs / "new.txt").write_text("Something new about glass. " * 9)
    (docs / ".hidden.txt").write_text("x")
    _, report = ingest(store, engine, docs)
    assert [failure.path for failure in report.failures] == [str(docs / "harbour.txt")]
    assert [failure.path for failure in report.skipped] == [str(docs / ".hidden.txt")]
    assert report.n_new == 1 and report.n_removed == 0
    assert any("grey stone" in chunk.text for chunk in store.chunks(str(docs / "harbour.txt")))


def test_nothing_is_prefilled_where_none_is_asked_and_all_of_it_later(store, engine, docs):
    plan, report = ingest(store, engine, docs, prefill="none")
    assert engine.prefilled == [] and report.n_cold == plan.n_segments > 0
    assert store.search(store.embedder.embed_query("harbour"), 1)[0].chunk.text.startswith("Pier")
    again, report = ingest(store, engine, docs)
    assert again.n_segments == plan.n_segments == report.n_prefilled and not again.is_empty
    assert len(again.of("unchanged")) == 2 and store.embedder.embedded == []


def test_prefill_stops_where_the_disk_budget_is_full(folder, embedder, docs):
    for i in range(10):
        (docs / f"more{i}.txt").write_text(f"Number {i}. {HARBOUR}")
    budget = 9 * (FILE_OVERHEAD + 20_000)
    with SegmentCache.open(Store.segments_folder(folder), None, budget) as cache:
        engine = FakeEngine(cache)
        with Store.create_or_open(folder, engine, embedder=embedder, chunk_tokens=64) as store:
            plan, report = ingest(store, engine, docs)
            assert not plan.fits and plan.room_bytes == budget and report.is_full
            assert 0 < report.n_prefilled < plan.n_segments == report.n_prefilled + report.n_cold
            # What was made is still there, nothing was made twice, and everything can be found.
            on_disk = cache.stats().tiers["disk"]
            assert on_disk.n_entries == report.n_prefilled == len(engine.prefilled) and on_disk.nbytes <= budget
            assert store.counts() == (12, plan.n_chunks)
            # Again: forecasts are generous, so some more may fit, but nothing is evicted for it.
            made = set(engine.prefilled)
            _, again = ingest(store, engine, docs)
            assert again.n_cold == report.n_cold - again.n_prefilled > 0
            assert made.isdisjoint(engine.prefilled)
            assert all(cache.disk.contains(engine.segment_key(ids).digest) for ids in made)


def test_what_the_disk_did_not_take_is_not_reported_as_prefilled(store, engine, docs, monkeypatch):
    monkeypatch.setattr(engine.cache.disk, "put", lambda *_: "refused")
    plan, report = ingest(store, engine, docs)
    assert (report.n_prefilled, report.n_hits, report.n_cold) == (0, 0, plan.n_segments)
    monkeypatch.undo()
    again, report = ingest(store, engine, docs)  # memory has them: they are written, not computed again
    assert (again.n_segments, engine.prefilled) == (plan.n_segments, [])
    assert (report.n_prefilled, report.n_hits, report.n_cold) == (0, plan.n_segments, 0)
    assert plan_ingest(store, engine, [docs]).is_empty


def test_removed_text_makes_room_for_new_text(folder, embedder, docs):
    (docs / "bread.md").unlink()
    with (
        SegmentCache.open(Store.segments_folder(folder), None, None) as cache,
        Store.create_or_open(folder, FakeEngine(cache), embedder=embedder, chunk_tokens=64) as store,
    ):
        _, first = ingest(store, FakeEngine(cache), docs)
    budget = first.n_prefilled * (FILE_OVERHEAD + 20_000)
    (docs / "harbour.txt").rename(docs / "port.txt")
    (docs / "port.txt").write_text(HARBOUR.replace("Pier", "Quay"))
    with (
        SegmentCache.open(Store.segments_folder(folder), None, budget) as cache,
        Store.open(folder, embedder=embedder) as store,
    ):
        plan, report = ingest(store, FakeEngine(cache), docs)
    assert report.n_removed == 1 and not plan.fits
    assert report.n_prefilled == first.n_prefilled and report.n_cold == 0


def test_an_engine_in_full_mode_ingests_segments_all_the_same(store, engine, docs):
    _, report = ingest(store, in_mode(engine, mode="full"), docs)
    assert report.n_prefilled > 0
    plan, _ = ingest(store, in_mode(engine, mode="hypic"), docs)
    assert plan.is_empty


def test_chunks_no_longer_than_the_seam_are_indexed_but_never_cold(store, engine, docs):
    (docs / "tiny.txt").write_text("Glass")
    in_mode(engine, seam_tokens=12)
    _, report = ingest(store, engine, docs)
    assert report.n_new == 3 and report.n_cold == 0
    (docs / "tiny.txt").unlink()
    _, report = ingest(store, engine, docs)
    assert report.n_removed == 1
    assert store.gone() == []


def test_the_old_version_answers_until_the_new_one_is_in(store, engine, docs):
    ingest(store, engine, docs)
    (docs / "harbour.txt").write_text(" ".join(f"The port of Vardal has {i} cranes." for i in range(20)))
    seen = []
    make = engine.make

    def watching(cold, **options):
        seen.append([chunk.text[:8] for chunk in store.chunks(str(docs / "harbour.txt"))])
        return make(cold, **options)

    engine.make = watching
    ingest(store, engine, docs)
    assert seen[0] and all(text.startswith("Pier") for text in seen[0])
    assert all(chunk.text.startswith("The port") for chunk in store.chunks(str(docs / "harbour.txt")))


def test_progress_ends_at_everything(store, engine, docs):
    seen = []
    plan = plan_ingest(store, engine, [docs])
    run_ingest(plan, on_progress=seen.append)
    assert seen[-1].n_documents == seen[-1].total_documents == 2
    assert seen[-1].n_tokens == seen[-1].total_tokens == plan.prefill_tokens
    assert [p.n_tokens for p in seen] == sorted(p.n_tokens for p in seen)


def test_a_plan_that_was_overtaken_leaves_one_copy(store, folder, engine, docs):
    """Another process ingests the same document, then another version of it, between plan and run."""
    ingest(store, engine, docs)
    (docs / "harbour.txt").write_text(HARBOUR + "A lighthouse was added in 1902. " * 4)
    plan = plan_ingest(store, engine, [docs])
    with Store.open(folder, embedder=FakeEmbedder()) as other:
        other.remove_document(str(docs / "harbour.txt"))
    report = run_ingest(plan)
    [expected] = [planned.chunks for planned in plan.of("changed")]
    assert [(c.title, c.text) for c in store.chunks(str(docs / "harbour.txt"))] == list(expected)
    assert report.n_chunks_added == len(expected)
    run_ingest(plan)
    assert [(c.title, c.text) for c in store.chunks(str(docs / "harbour.txt"))] == list(expected)


BAD = {
    "no path": ([], "no path was given"),
    "a path that is not there": (["missing.txt"], "no file or folder"),
    "an empty folder": (["empty"], "holds nothing to read"),
}


@pytest.mark.parametrize("paths, message", BAD.values(), ids=BAD)
def test_bad_paths_are_told(store, engine, tmp_path, paths, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=message):
        plan_ingest(store, engine, [tmp_path / path for path in paths])


def test_an_unknown_prefill_is_told(store, engine, docs):
    with pytest.raises(BadInput, match="'all' or 'none'"):
        run_ingest(plan_ingest(store, engine, [docs]), "some")


def test_another_model_is_refused(store, docs):
    other = FakeEngine(fingerprint="e" * 64)
    for plan in (lambda: plan_ingest(store, other, [docs]), lambda: plan_again(store, other)):
        with pytest.raises(StoreMismatch):
            plan()


def upgraded(engine):
    """The same model with other weights, over the same cache."""
    return FakeEngine(engine.cache, fingerprint="e" * 64)


def test_after_an_upgrade_one_run_without_paths_prefills_all_that_the_store_has(store, engine, docs, folder):
    _, before = ingest(store, engine, docs)
    chunks, n_entries = store.chunks(), len(engine.cache.disk.listed())
    (docs / "bread.md").unlink()  # what the store has is enough
    new = upgraded(engine)
    with Store.create_or_open(folder, new, embedder=store.embedder, renew=True) as renewed:
        assert engine.cache.disk.listed() == []  # n_entries of the former weights, and no more
        assert n_entries == before.n_prefilled + 1
        plan = plan_again(renewed, new)
        assert (plan.n_segments, plan.prefill_tokens) == (before.n_prefilled, before.prefill_tokens)
        store.embedder.embedded.clear()
        report = run_ingest(plan)
        assert (report.n_unchanged, report.n_removed, report.n_prefilled) == (2, 0, before.n_prefilled)
        assert store.embedder.embedded == []
        assert renewed.chunks() == chunks
        assert {entry.record.key["model"] for entry in engine.cache.disk.listed()} == {new.fingerprint}
        assert plan_again(renewed, new).is_empty
    with Store.create_or_open(folder, new, embedder=store.embedder):  # and is asked as any other
        pass
    with pytest.raises(StoreMismatch):  # but not with the former weights
        Store.create_or_open(folder, engine, embedder=store.embedder)


def test_a_renewal_leaves_what_is_of_others(store, engine, docs, folder):
    ingest(store, engine, docs)
    ids = engine.format.document("of a tenant, or of another model that somebody uses beside it")
    theirs = replace(engine.segment_key(ids), namespace="acme"), replace(engine.segment_key(ids), model="d" * 64)
    for key in theirs:
        engine._make(key)
    assert store.renew(engine) == 0  # of these weights already
    assert store.renew(upgraded(engine)) > 0
    assert {entry.record.digest for entry in engine.cache.disk.listed()} == {key.digest for key in theirs}
    other = upgraded(engine)
    other.model_name = "other/model"
    other.fingerprint = "c" * 64
    assert store.renew(other) == 0 and store.manifest.model_fingerprint == "e" * 64


def test_a_renewal_that_cannot_be_written_changes_nothing(store, engine, docs, folder, monkeypatch):
    ingest(store, engine, docs)
    n_entries = len(engine.cache.disk.listed())
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(BadInput, match=r"store\.json cannot be written: .*No space left"):
        store.renew(upgraded(engine))
    assert len(engine.cache.disk.listed()) == n_entries
    store.check_engine(engine)


def test_what_was_evicted_is_prefilled_again_without_paths(store, engine, docs):
    ingest(store, engine, docs)
    first = engine.segment_key(engine.format.document(store.chunks()[0].text, store.chunks()[0].title))
    engine.cache.discard([first.digest])
    engine.prefilled.clear()
    assert run_ingest(plan_again(store, engine)).n_prefilled == 1
    assert engine.prefilled == [first.token_ids]


def test_what_another_version_cut_is_cut_anew(store, engine, docs, monkeypatch):
    """Documents that another version of the chunker cut: segments are kept where a chunk has come out the same."""
    ingest(store, engine, docs)
    monkeypatch.setattr(chunking, "VERSION", chunking.VERSION + 1)
    plan, report = ingest(store, engine, docs)
    assert (report.n_metadata, report.n_prefilled, store.embedder.embedded) == (2, 0, [])
    assert ingest(store, engine, docs)[1].n_unchanged == 2

    monkeypatch.setattr(chunking, "VERSION", chunking.VERSION + 2)
    whole = plan_module.split_document
    monkeypatch.setattr(plan_module, "split_document", lambda title, text, *sizes: whole(title, text[:80], *sizes))
    plan, report = ingest(store, engine, docs)
    assert names(plan.of("changed")) == ["bread.md", "harbour.txt"] and report.n_chunks_removed
    assert ingest(store, engine, docs)[1].n_unchanged == 2
