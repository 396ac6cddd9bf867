"""The command line as processes: killed, many at once, interrupted, with nobody reading."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_process import start_command

STORE = ("--store", "default")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A hundred documents of a hundred tokens: three calls of prefill, some seconds."""
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(100):
        (folder / f"{n:02}.txt").write_text(" ".join(f"Item {n} has the number {n * k}." for k in range(10)))
    return folder


def wait_for(reached: Callable[[], bool], is_running: Callable[[], bool], said: Callable[[], str]) -> None:
    """Until the point is reached; a process that ends before would leave nothing to test."""
    end = time.monotonic() + 200
    while not reached():
        assert is_running() and time.monotonic() < end, said()
        time.sleep(0.001)


def test_an_ingest_killed_anywhere_is_finished_by_the_next(
    cli, home: Path, tiny_model: Path, many: Path, tmp_path: Path
) -> None:
    store, said = home / "stores" / "default", tmp_path / "said"
    n_documents = 0

    def has_segments(least: int) -> Callable[[], bool]:
        return lambda: sum(1 for _ in store.glob("segments/*/*.safetensors")) >= least

    points = {
        "the folder is there": store.exists,
        "the store is there": (store / "store.json").exists,
        "the first segment": has_segments(1),
        "some segments": has_segments(25),
    }
    for point, reached in points.items():
        process = start_command(home, tiny_model, said, "ingest", many, *STORE)
        wait_for(reached, process.is_alive, said.read_text)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, point
        if (store / "store.json").exists():
            info = json.loads(cli("info", "--json", *STORE).out)
            assert info["store"]["n_documents"] >= n_documents, point
            n_documents = info["store"]["n_documents"]
    assert cli("ask", "What number has item 7?", *STORE).code == (0 if n_documents else 1)  # killed before the first
    report = json.loads(cli("ingest", many, "--json", *STORE).out)
    assert 0 < report["n_prefilled"] < 90  # what was made before was kept
    assert report["n_unchanged"] >= n_documents
    assert json.loads(cli("info", "--json", *STORE).out)["store"]["n_documents"] == 100
    assert json.loads(cli("ingest", many, "--json", *STORE).out)["n_prefilled"] == 0


def test_four_ingests_at_once_on_a_new_store_all_succeed(
    cli, home: Path, tiny_model: Path, many: Path, tmp_path: Path
) -> None:
    said = [tmp_path / f"said{n}" for n in range(4)]
    processes = [start_command(home, tiny_model, file, "ingest", many, *STORE) for file in said]
    for process, file in zip(processes, said, strict=True):
        process.join(240)
        assert process.exitcode == 0, file.read_text()
        assert " removed; " in file.read_text()
    info = json.loads(cli("info", "--json", *STORE).out)
    assert (info["store"]["n_documents"], info["store"]["n_chunks"]) == (100, 100)
    assert json.loads(cli("ask", "What number has item 7?", "--json", *STORE).out)["n_from_cache"] == 5


def popen(home: Path, model: Path, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "hypic_apps.cli.main", *map(str, arguments)],
        env={**os.environ, "HYPIC_HOME": str(home), "HYPIC_MODEL": str(model), "OMP_NUM_THREADS": "1"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """Also where the tests run in the background of a shell, which has them ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupting_is_clean(home: Path, tiny_model: Path, many: Path) -> None:
    with popen(home, tiny_model, "ingest", many, *STORE) as process:
        store = home / "stores" / "default" / "store.json"
        wait_for(store.exists, lambda: process.poll() is None, lambda: str(process.communicate()))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == "" and "Traceback" not in err


def test_an_interrupt_that_a_library_swallows_is_still_told() -> None:
    code = """
import contextlib, os, signal, types
from hypic_rag import command_line
def run() -> None:
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
work = types.ModuleType("work"); work.run = run
more = types.ModuleType("more"); more.run = lambda: None
command_line.run(command_line.make_app([work, more], "", "", ""), "hypic")
"""
    run = [subprocess.run([sys.executable, "-c", code, name], preexec_fn=heed_interrupts) for name in ("work", "more")]
    codes = [one.returncode for one in run]
    assert codes == [130, 0]


def test_a_reader_that_leaves_is_no_error(asking, home: Path, tiny_model: Path) -> None:
    with popen(home, tiny_model, "ask", "Who built the lighthouse?", "--stream") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert not any(word in err for word in ("Traceback", "Broken", "Exception ignored"))
