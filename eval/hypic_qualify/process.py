"""``hypic-rag serve`` as a process of its own: started, found, stopped or killed."""

import contextlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from hypic_rag.errors import HypicError

SERVING = re.compile(r"^serving on (http://\S+)$", re.MULTILINE)
END_SECONDS = 60.0

How = Literal["spawn", "forkserver"]


class NoServer(HypicError):
    """The server did not start, or ended by itself."""


@dataclass(frozen=True)
class Server:
    url: str
    process: BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill with SIGKILL: the server can do nothing about it."""
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def started(
    home: Path, *options: str, settings: Mapping[str, str] | None = None, how: How = "spawn", seconds: float = 600
) -> Iterator[Server]:
    """Start a server of this HYPIC_HOME on a free port; yield it once it takes requests; stop
    it at the end, if it still runs.

    settings: environment variables. how: "spawn" imports everything anew, as the command does; "forkserver" once for
    many servers, which saves ten seconds each. What it says goes to HOME/server.log.
    Raises NoServer with the last of that, where it ends before it serves.
    """
    home.mkdir(parents=True, exist_ok=True)
    said = home / "server.log"
    said.unlink(missing_ok=True)
    context: Any = multiprocessing.get_context(how)
    if how == "forkserver":
        context.set_forkserver_preload(["hypic_qualify.preloaded"])
    environment = {**(settings or {}), "HYPIC_HOME": str(home)}
    process = context.Process(target=_serve, args=(environment, str(said), ["--port", "0", *options]))
    process.start()
    try:
        yield Server(_address(process, said, seconds), process)
    finally:
        process.terminate()
        process.join(END_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(environment: Mapping[str, str], said: str, options: list[str]) -> None:
    """Serve, in the new process."""
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    sys.argv = ["hypic-rag", "serve", *options]
    from hypic_apps.cli.main import main

    main()


def _address(process: BaseProcess, said: Path, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        text = said.read_text(errors="replace") if said.exists() else ""
        if found := SERVING.search(text):
            return found[1]
        if not process.is_alive() or time.monotonic() > deadline:
            told = " / ".join(text.strip().splitlines()[-3:])
            raise NoServer(f"hypic-rag serve does not serve: {told or 'it says nothing'}")
        time.sleep(0.05)
