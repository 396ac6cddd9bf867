"""The command line in a process that a test can kill, without importing torch anew each time."""

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = ["hypic_rag.rag.session", "hypic_apps.ingestion", "hypic_apps.server.app", "sentence_transformers"]


def start_command(home: Path, model: Path, said: Path, *arguments: str | Path) -> BaseProcess:
    """Starts ``hypic-rag ARGUMENTS``; what it prints and says goes to the file ``said``."""
    environment = {"HYPIC_HOME": str(home), "HYPIC_MODEL": str(model)}
    process = forkserver().Process(target=_command, args=(environment, said, *map(str, arguments)))
    process.start()
    return process


def forkserver() -> ForkServerContext:
    """Processes made by it have what takes seconds to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _command(environment: dict[str, str], said: Path, *arguments: str) -> None:
    import torch
    from hypic_apps.cli.main import main

    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    os.environ.update(environment)
    sys.argv = ["hypic-rag", *arguments]
    main()
