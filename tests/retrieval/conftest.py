"""Makes ``fake_engine`` importable for these tests, and the fixtures that most of them use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import FakeEmbedder, FakeEngine

from hypic_rag.cache import SegmentCache
from hypic_rag.retrieval.store import Store


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


@pytest.fixture
def llm(engine):
    from hypic_rag.integrations.llama_index.llm import HypicLLM

    return HypicLLM(engine=engine)


@pytest.fixture
def no_default_llm(monkeypatch):
    """LlamaIndex falls back to OpenAI where no LLM is given; here that is an error."""
    from llama_index.core import settings

    def refuse(name, **_):
        raise AssertionError(f"Settings.llm was evaluated ({name})")

    monkeypatch.setattr(settings, "resolve_llm", refuse)
    monkeypatch.setattr(settings.Settings, "_llm", None)
