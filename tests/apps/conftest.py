"""A tiny model, some documents, and the command line in this process or in one of its own."""

import contextlib
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import hypic_rag.default_model

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests share

TEXTS = {
    "lighthouse": "The lighthouse of Porto Vells was built in 1871 by Ada Marrow. It has 212 steps.",
    "harvest": "The harvest fair of Lund is in September. The largest pumpkin weighed 412 kilograms.",
    "violin": "Jonas Petri made his first violin of pear wood. He sold it for nine crowns.",
    "glacier": "The Skarn glacier lost eleven metres in 1990. Its melt water feeds the river Ister.",
    "engine": "The first steam engine of the valley drove a saw mill. It broke down every spring.",
}
Cli = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code, what it printed, and what it said meanwhile."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 of four layers with the default model's tokenizer and a context of 2,048 tokens."""
    import torch
    from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(Path(hypic_rag.default_model.__file__).parent)
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        tie_word_embeddings=True,
        initializer_range=0.2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    Qwen3_5ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HYPIC_HOME of this test's own, and no other setting in the environment."""
    for name in list(os.environ):
        if name.startswith("HYPIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "docs")


@pytest.fixture
def cli(home: Path, tiny_model: Path) -> Cli:
    """Runs ``hypic-rag ARGUMENTS`` with the tiny model, in this process."""
    return functools.partial(run, home, tiny_model)


@pytest.fixture(scope="session")
def ingested(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HYPIC_HOME with the documents in its store."""
    folder = tmp_path_factory.mktemp("ingested")
    documents = write_documents(folder / "docs")
    assert run(folder / "home", tiny_model, "ingest", documents).code == 0
    return folder / "home"


@pytest.fixture
def asking(home: Path, ingested: Path, cli: Cli) -> Cli:
    """As ``cli``, with the documents ingested."""
    shutil.copytree(ingested, home)
    return cli


def write_documents(folder: Path) -> Path:
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def run(home: Path, model: Path, *arguments: str | Path, stdin: str = "") -> Done:
    from hypic_apps.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        patch.setenv("HYPIC_HOME", str(home))
        patch.setenv("HYPIC_MODEL", str(model))
        patch.setenv("HYPIC_MAX_NEW_TOKENS", "6")
        patch.setenv("HYPIC_MIN_SIMILARITY", "-1")  # of five documents all are answered from
        patch.setattr(sys, "argv", ["hypic-rag", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        main()
    return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())
