"""A server over a tiny engine, on a port of its own."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest
from hypic_apps.server.app_state import Service
from hypic_apps.server.chat.engine_loop import EngineLoop

from hypic_rag import SegmentEngine
from hypic_rag.config import Settings
from hypic_rag.rag.turns import Turns
from hypic_rag.retrieval import Embedder

sys.path.insert(0, str(Path(__file__).parents[2] / "engine"))  # tiny
sys.path.insert(0, str(Path(__file__).parent))  # tiny_server
import collecting
import tiny
from tiny_server import Running, running

numbers = count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service over an engine without a model, whose collections a file's tests share."""
    return collecting.make_service(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def everybody(service: Service) -> Iterator[collecting.Api]:
    with collecting.serving(service) as asked:
        yield asked


@pytest.fixture
def api(everybody: collecting.Api) -> collecting.Api:
    """A tenant of the test's own."""
    return everybody.of(f"t{next(numbers)}")


@pytest.fixture(scope="session")
def tiny_engine() -> SegmentEngine:
    return tiny.engine("qwen3_5_text")


@pytest.fixture
def make_service(tiny_engine: SegmentEngine, tmp_path: Path) -> Callable[..., Service]:
    def make(engine: SegmentEngine = tiny_engine, **settings: Any) -> Service:
        values = Settings(**{"max_new_tokens": 8, "grace_seconds": 5.0, **settings})
        loop = EngineLoop(engine, values.max_running, values.max_waiting)
        return Service(values, tmp_path, engine, Embedder(), loop)

    return make


@pytest.fixture(scope="session")
def shared(tiny_engine: SegmentEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    values = Settings(max_new_tokens=8, grace_seconds=5.0, chunk_tokens=64)
    loop = EngineLoop(tiny_engine, values.max_running, values.max_waiting)
    with running(Service(values, tmp_path_factory.mktemp("server"), tiny_engine, Embedder(), loop)) as found:
        yield found


@pytest.fixture
def server(shared: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """One for all tests, each of which finds it without former turns, and leaves it idle."""
    monkeypatch.setattr(shared.service.rag, "turns", Turns())
    monkeypatch.setattr(shared.service, "collections", shared.service.collections)  # which a test may replace
    yield shared
    assert shared.idle()


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
