"""Tiny engines and plain models, built once a session."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tiny and two_stream are modules of these tests

import pytest
import tiny

from hypic_rag import SegmentEngine


@cache
def _plain(kind: str) -> Any:
    return tiny.build(kind)


@cache
def _engine(kind: str) -> SegmentEngine:
    return tiny.engine(kind)


@pytest.fixture(params=tiny.CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(kind: str) -> Any:
    return _plain(kind)


@pytest.fixture
def engine(kind: str) -> SegmentEngine:
    """Shared by tests: its cache holds what others prefilled."""
    return _engine(kind)


@pytest.fixture
def gdn_engine() -> SegmentEngine:
    return _engine("qwen3_5_text")


@pytest.fixture
def gdn_plain() -> Any:
    return _plain("qwen3_5_text")
