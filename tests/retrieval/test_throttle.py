"""Work in bites of about so many seconds, each a turn; documents that were read elsewhere."""

import contextlib
import time

import pytest

from hypic_rag.packs import packs
from hypic_rag.retrieval.ingest import plan_documents, run_ingest
from hypic_rag.retrieval.readers import SourceDocument
from hypic_rag.retrieval.throttle import Throttle

TEXT = " ".join(f"Pier {i} of the harbour of Vardal was built of grey stone in {1870 + i}." for i in range(1, 30))


def bites(pace, items, most=100):
    done = []
    for some in packs(items, (lambda item: item, lambda: pace.room("work", most))):
        with pace.bite("work", sum(some)):
            time.sleep(0.001 * sum(some))
            done.append(some)
    return done


def test_without_a_pace_bites_are_as_large_as_they_may_be():
    assert bites(Throttle(), [40, 40, 40, 200, 1]) == [[40, 40], [40], [200], [1]]
    assert bites(Throttle(), []) == []


def test_a_bite_takes_about_so_many_seconds():
    done = bites(Throttle(seconds=0.04), [10] * 20)
    assert [len(done[0]), sum(map(len, done))] == [1, 20]  # nothing is known of the first
    assert all(2 <= len(bite) <= 4 for bite in done[1:-1]), done


def test_every_bite_is_a_turn_and_a_turn_may_end_the_work():
    turns = []

    @contextlib.contextmanager
    def turn():
        turns.append("in")
        if len(turns) > 4:
            raise KeyError("enough")
        yield
        turns.append("out")

    with pytest.raises(KeyError):
        bites(Throttle(seconds=0.001, turn=turn), [10] * 5)
    assert turns == ["in", "out", "in", "out", "in"]


def documents(*texts):
    return [SourceDocument(f"file-1/{i}", f"Title {i}", text, {"path": "file-1"}) for i, text in enumerate(texts)]


def test_documents_read_elsewhere_are_ingested_and_replaced(store, engine):
    report = run_ingest(plan_documents(store, engine, documents(TEXT, "Second."), "file-1"), pace=Throttle(0.01))
    assert (report.n_new, report.n_removed, report.n_cold) == (2, 0, 0)
    others = [SourceDocument("file-2/0", "", "Other.", {"path": "file-2"})]
    run_ingest(plan_documents(store, engine, others, "file-2"))

    report = run_ingest(plan_documents(store, engine, documents(TEXT), "file-1"))

    assert (report.n_unchanged, report.n_removed, report.n_prefilled) == (1, 1, 0)
    assert [one.doc_id for one in store.documents()] == ["file-1/0", "file-2/0"]


def test_a_run_that_was_ended_goes_on_where_it_stopped(store, engine):
    n = 0

    @contextlib.contextmanager
    def turn():
        nonlocal n
        n += 1
        if n == 6:
            raise InterruptedError
        yield

    plan = plan_documents(store, engine, documents(*(f"{i} {TEXT}" for i in range(4))), "file-1")
    with pytest.raises(InterruptedError):
        run_ingest(plan, pace=Throttle(1e-6, turn))
    made = len(engine.prefilled)
    again = plan_documents(store, engine, documents(*(f"{i} {TEXT}" for i in range(4))), "file-1")
    assert again.n_segments == plan.n_segments - made
    assert run_ingest(again).n_cold == 0


def test_what_is_removed_is_in_no_file_of_the_store(store, engine, folder):
    run_ingest(plan_documents(store, engine, documents(f"Quicksilver. {TEXT}"), "file-1"))
    files = list(folder.rglob("store.sqlite*"))
    assert any(b"Quicksilver" in path.read_bytes() for path in files)
    run_ingest(plan_documents(store, engine, [], "file-1"))
    store.compact()
    assert not any(b"Quicksilver" in path.read_bytes() for path in files)
