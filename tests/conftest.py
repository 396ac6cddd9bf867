"""Fixtures that every part of the tests shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hypic_rag.default_model import ensure
from hypic_rag.errors import ModelNotReady


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model as a Hugging Face folder; built once, kept for later runs.

    It lies in HYPIC_TEST_HOME (default: ~/.cache/hypic-rag-tests). Where it cannot be built the test is
    skipped, but fails under CI.
    """
    home = Path(os.environ.get("HYPIC_TEST_HOME") or "~/.cache/hypic-rag-tests").expanduser()
    try:
        return ensure(home)
    except ModelNotReady as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
