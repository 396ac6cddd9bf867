"""The command line as processes: killed, many at once, interrupted, with nobody reading."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Sixty documents of 300 tokens or so: some seconds to ingest."""
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(60):
        (folder / f"{n:02}.txt").write_text(" ".join(f"Item {n} has the number {n * k}." for k in range(40)))
    return folder


def wait_for(process: "subprocess.Popen[str]", reached: Callable[[], bool]) -> None:
    """Until the point is reached; a process that ends before is a mistake of the test."""
    end = time.monotonic() + 120
    while not reached():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.002)


def test_an_ingest_killed_anywhere_is_finished_by_the_next(cli, start, many: Path, home: Path) -> None:
    store = home / "stores" / "default"
    segments = store / "segments"

    def n_files(least: int) -> Callable[[], bool]:
        return lambda: segments.is_dir() and sum(1 for _ in segments.rglob("*.safetensors")) >= least

    points = {
        "the folder is there": store.exists,
        "the first segment": n_files(1),
        "some segments": n_files(20),
        "most segments": n_files(45),
    }
    n_documents = 0
    for point, reached in points.items():
        process = start("ingest", many)
        wait_for(process, reached)
        process.kill()
        assert process.wait() == -signal.SIGKILL, point
        process.communicate()
        if (store / "store.json").exists():
            info = json.loads(cli("info", "--json").out)
            assert info["store"]["n_documents"] >= n_documents, point
            n_documents = info["store"]["n_documents"]
            assert cli("ask", "What number has item 7?").code == 0, point
    report = json.loads(cli("ingest", many, "--json").out)
    assert 0 < report["n_prefilled"] < 60
    assert report["n_unchanged"] >= n_documents
    assert json.loads(cli("info", "--json").out)["store"]["n_documents"] == 60
    assert json.loads(cli("ingest", many, "--json").out)["n_prefilled"] == 0


def test_four_ingests_at_once_on_a_new_store_all_succeed(cli, start, many: Path) -> None:
    for file in sorted(many.iterdir())[12:]:
        file.unlink()
    processes = [start("ingest", many) for _ in range(4)]
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert " removed; " in out
    info = json.loads(cli("info", "--json").out)
    assert (info["store"]["n_documents"], info["store"]["n_chunks"]) == (12, 12)
    assert json.loads(cli("ask", "What number has item 7?", "--json").out)["n_from_cache"] == 5


def test_interrupting_is_clean(start, many: Path, home: Path) -> None:
    process = start("ingest", many)
    wait_for(process, lambda: (home / "stores" / "default" / "store.json").exists())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and "Traceback" not in err


def test_a_reader_that_leaves_is_no_error(cli, start, documents: Path) -> None:
    cli("ingest", documents)
    process = start("ask", "Who built the lighthouse?", "--stream")
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert "Traceback" not in err and "Broken" not in err and "Exception ignored" not in err
