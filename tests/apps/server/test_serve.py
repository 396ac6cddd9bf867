"""``hypic-rag serve`` in a process of its own: it says where it listens, and ends in good order."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest
from command_process import start_command

from hypic_rag.collections.claim import claimed


@pytest.fixture
def serving(home: Path, tiny_model: Path, tmp_path: Path) -> Iterator[tuple[BaseProcess, str]]:
    """The process, and its address."""
    said = tmp_path / "said"
    process = start_command(home, tiny_model, said, "serve", "--port", "0", "--grace-seconds", "20")
    try:
        for _ in range(1200):
            if found := re.search(r"serving on (http://\S+)", said.read_text() if said.exists() else ""):
                break
            assert process.is_alive(), said.read_text()
            time.sleep(0.1)
        assert found
        yield process, found[1]
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_under_way_finish(
    serving: tuple[BaseProcess, str], home: Path, number: signal.Signals
) -> None:
    process, url = serving
    assert (home / "server").stat().st_mode & 0o777 == 0o700  # what is in it is its owner's
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 150, "stream": True}
    lines: list[str] = []

    def follow() -> None:
        with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60) as response:
            lines.extend(line for line in response.iter_lines() if line)

    following = threading.Thread(target=follow)
    following.start()
    deadline = time.monotonic() + 30
    while httpx.get(url + "/ready").json()["running"] == 0:
        assert time.monotonic() < deadline
    assert process.pid
    os.kill(process.pid, number)
    time.sleep(0.5)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health")
    following.join(60)
    assert '"finish_reason":"' in lines[-2] and lines[-1] == "data: [DONE]"
    process.join(30)
    assert process.exitcode == 0


def test_a_port_that_is_taken_is_told_at_once(cli: "object") -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("serve", "--port", str(taken.getsockname()[1]))  # type: ignore[operator]
    assert done.code == 1
    assert "Choose another --port" in done.err


@pytest.mark.parametrize("case", ["port", "home", "keys"])
def test_what_hinders_a_start_is_told_before_torch_is_imported(case: str, tmp_path: Path) -> None:
    script = "import sys; from hypic_apps.cli.main import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    with contextlib.ExitStack() as held:
        taken = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        (tmp_path / "server").mkdir()
        if case == "home":
            held.enter_context(claimed(tmp_path / "server", "serve"))
        options, code, told = {
            "port": (["--port", str(taken)], 1, "Choose another --port"),
            "home": (["--port", "0"], 1, "another hypic-rag serve uses"),
            "keys": (["--host", "0.0.0.0"], 2, "there are no API keys"),  # what the unit does not try again
        }[case]
        done = subprocess.run(
            [sys.executable, "-c", script, "serve", *options],
            env=os.environ | {"HYPIC_HOME": str(tmp_path)}, capture_output=True, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "False\n")
    assert told in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "option", ["--port 70000", "--max-running 0", "--request-seconds 0", "--conversation-memory unlimited"]
)
def test_wrong_settings_are_bad_usage(cli: "object", option: str) -> None:
    assert cli("serve", *option.split()).code == 2  # type: ignore[operator]
