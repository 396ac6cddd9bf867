"""Makes ``fake_engine`` importable for these tests, and the fixtures that most of them use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import FakeEmbedder, FakeEngine  # noqa: E402

from hypic_rag.cache import SegmentCache  # noqa: E402
from hypic_rag.retrieval.store import Store  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def embedder():
    return FakeEmbedder()


@pytest.fixture
def engine(folder):
    with SegmentCache.open(Store.segments_folder(folder), None, None) as cache:
        yield FakeEngine(cache)


@pytest.fixture
def store(folder, engine, embedder):
    with Store.create_or_open(folder, engine, embedder=embedder, chunk_tokens=64) as store:
        yield store
