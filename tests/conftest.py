"""Fixtures that every part of the tests shares."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # interrupts is a module of these tests

from hypic_rag import default_model
from hypic_rag.default_model import ensure
from hypic_rag.errors import ModelNotReady
from hypic_rag.prompt import PromptFormat

sys.path.insert(0, str(Path(__file__).parent))  # small_tokenizers


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


@pytest.fixture(scope="session")
def form() -> PromptFormat:
    """The default model's prompt format."""
    from transformers import AutoTokenizer

    return PromptFormat(AutoTokenizer.from_pretrained(Path(default_model.__file__).parent))


@pytest.fixture
def few() -> Path:
    """Four rows of HotpotQA."""
    return Path(__file__).parent / "data" / "hotpotqa_few.jsonl"


def _with_room(call: Callable[[], None]) -> None:
    call()


# CPython 3.11 keeps Python's frames in chunks of 16 KB, and maps and unmaps memory at every call that crosses into a
# new one. Triton's interpreter makes millions of short calls at one depth: where they cross, a test takes three times
# as long. A frame of half a megabyte gets a chunk of one, which has room for all that is called from it.
_with_room.__code__ = _with_room.__code__.replace(co_stacksize=1 << 16)


def pytest_itemcollected(item: pytest.Item) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1" and isinstance(item, pytest.Function):
        test = item.obj
        item.obj = functools.wraps(test)(lambda **given: _with_room(lambda: test(**given)))
