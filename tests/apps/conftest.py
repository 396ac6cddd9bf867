"""A tiny model, some documents, and the command line in this process or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import hypic_rag.default_model

TEXTS = {
    "lighthouse": "The lighthouse of Porto Vells was built in 1871 by Ada Marrow. It has a red lamp and 212 steps.",
    "harvest": "The harvest fair of Lund takes place in September. The largest pumpkin of 2011 weighed 412 kilograms.",
    "violin": "Jonas Petri made his first violin from the wood of an old pear tree. He sold it for nine crowns.",
    "glacier": "The Skarn glacier lost eleven metres between 1990 and 2005. Its melt water feeds the river Ister.",
    "engine": "The first steam engine of the valley drove a saw mill. It burned beech and broke down every spring.",
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
    """A random Qwen3.5 of four layers with the default model's tokenizer and a context of 1,024 tokens."""
    import torch
    from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(Path(hypic_rag.default_model.__file__).parent)
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, tie_word_embeddings=True,
        max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=2,
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
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


@pytest.fixture
def cli(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs ``hypic-rag ARGUMENTS`` with the tiny model, in this process."""
    from hypic_apps.cli.main import main

    monkeypatch.setenv("HYPIC_MODEL", str(tiny_model))
    monkeypatch.setenv("HYPIC_MAX_NEW_TOKENS", "6")

    def run(*arguments: str | Path, stdin: str = "") -> Done:
        out, err = io.StringIO(), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "argv", ["hypic-rag", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            with pytest.raises(SystemExit) as end:
                main()
        return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def start(home: Path, tiny_model: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts ``hypic-rag ARGUMENTS`` with the tiny model in a process of its own."""

    def run(*arguments: str | Path, **options: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "hypic_apps.cli.main", *map(str, arguments)]
        environment = {**os.environ, "HYPIC_MODEL": str(tiny_model), "OMP_NUM_THREADS": "1"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, env=environment, text=True, **{**streams, **options})  # type: ignore

    return run
