"""Ingestion killed with kill -9, and several at once: the store opens, answers, and finishes when run
again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import ingest_child
import pytest
from fake_engine import FakeEmbedder, FakeEngine
from ingest_child import CREATION, POINTS, ingest, text, write_docs

from hypic_rag.cache import SegmentCache
from hypic_rag.errors import BadInput
from hypic_rag.retrieval.store import Store


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with a store for each point, whose ingestion was killed there, and one for the race."""
    work = tmp_path_factory.mktemp("killed")
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }  # threads do not fork
    done = subprocess.run(
        [sys.executable, ingest_child.__file__, str(work)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    expected = {**{point: [-9] for point in (*CREATION, *POINTS)}, "race": [0, 0, 0, 0]}
    assert json.loads(done.stdout) == expected, done.stderr
    return work


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an ingestion of version 2 into an empty store makes."""
    place = tmp_path_factory.mktemp("whole")
    write_docs(place / "docs", 2)
    ingest(place / "store", place / "docs")
    return contents(place)


def contents(place):
    """{file: its text, from its chunks in their order} and the digests of all cached segments."""
    with Store.open(place / "store", embedder=FakeEmbedder()) as store:
        texts = {
            Path(d.doc_id).stem: " ".join(chunk.text for chunk in store.chunks(d.doc_id)) for d in store.documents()
        }
    return texts, {file.stem for file in (place / "store" / "segments").rglob("*.safetensors")}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_ingestion_answers_and_finishes_when_run_again(killed, whole, point):
    place = killed / point
    texts, _ = contents(place)
    versions = {name: {text(name, 1), text(name, 2)} for name in (*ingest_child.NAMES, "grain")}
    assert all(texts[name] in versions[name] for name in texts)  # each the old or the new, whole
    assert {"apple", "brick", "chalk", "delta", "ember"} <= set(texts)
    with Store.open(place / "store", embedder=FakeEmbedder()) as store:
        found = store.search(store.embedder.embed_query("chalk matters"), 1)
    assert Path(found[0].chunk.doc_id).stem == "chalk"

    report, engine = ingest(place / "store", place / "docs")

    assert contents(place) == whole
    assert report.n_new + report.n_changed + report.n_unchanged == 6
    # What was in the cache was not computed again: of 3 documents that changed, at most their segments.
    assert len(engine.prefilled) <= 1 + sum(count_segments(name, 2) for name in ("apple", "brick", "grain"))
    report, engine = ingest(place / "store", place / "docs")
    assert report.n_unchanged == 6 and engine.prefilled == []


def count_segments(name, version):
    from hypic_rag.retrieval.chunking import split_document

    return len(split_document(name, text(name, version), FakeEngine().format, 64))


@pytest.mark.parametrize("point", CREATION)
def test_a_store_whose_creation_was_killed_is_made_when_run_again(killed, whole, point):
    place = killed / point
    if point != "after the manifest":
        with pytest.raises(BadInput, match="no store in"):
            Store.open(place / "store", embedder=FakeEmbedder())
    ingest(place / "store", place / "docs")
    assert contents(place) == whole


@pytest.mark.parametrize("point", POINTS)
def test_every_cached_file_is_whole_after_a_kill(killed, point):
    with SegmentCache.open(killed / point / "store" / "segments", None, None) as cache:
        assert cache.verify() == []


def test_four_ingestions_of_one_new_store_leave_one_copy(killed):
    place = killed / "race"
    texts, segments = contents(place)
    assert texts == {name: text(name, 1) for name in ingest_child.NAMES}
    with SegmentCache.open(place / "store" / "segments", None, None) as cache:
        assert cache.verify() == [] and cache.gc() == []
        assert cache.stats().tiers["disk"].n_entries == len(segments)
    report, engine = ingest(place / "store", place / "docs")
    assert report.n_unchanged == 6 and engine.prefilled == []
