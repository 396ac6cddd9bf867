"""Help pages, bad usage and exit codes, without a model."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMANDS = {
    "ingest": {"--prefill", "--yes", "--json", "--chunk-tokens", "--disk-budget", "--host-memory", "--codec"},
    "ask": {"--mode", "--top-k", "--stream", "--json", "--compare", "--seam-tokens", "--compose", "--codec"},
    "chat": {"--codec", "--mode", "--top-k", "--max-new-tokens", "--top-p", "--seed"},
    "calibrate": {"--data", "--limit", "--max-kl", "--min-same-first", "--distance", "--out", "--json", "--model"},
    "audit": {"--questions", "--sample", "--seed", "--min-agreement", "--json", "--mode", "--seam-tokens"},
    "info": {"--json", "--codec", "--store", "--device", "--dtype"},
    "demo": {"--json", "--top-k", "--model"},
    "serve": {"--host", "--port", "--max-running", "--request-seconds", "--no-keys", "--max-body", "--log-format"},
}


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hypic_apps.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_help_opens_with_a_command_that_runs() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[1].split()
    assert first[:2] == ["hypic-rag", "demo"]
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert "HYPIC_HOME" in done.stdout


def test_help_is_quick_and_loads_no_torch() -> None:
    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    run("--help")  # compiled once
    before = cpu_s()
    run("--help")
    assert cpu_s() - before < 0.5  # processor time: the machine may be busy
    code = "import sys, hypic_apps.cli.main; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_options(command: str) -> None:
    done = run(command, "-h")
    assert done.returncode == 0
    words = {word.strip(",") for word in done.stdout.split()}
    assert COMMANDS[command] - words == set()


BAD = {
    "nothing": ([], "Start here:"),
    "unknown command": (["aks"], "Did you mean 'ask'?"),
    "unknown option": (["ask", "--topk", "3", "who?"], "--top-k"),
    "out of range": (["ask", "--top-k", "0", "who?"], "--top-k: needs a whole number of at least 1, not 0"),
    "unknown mode": (["ask", "--mode", "fulll", "who?"], "Did you mean full?"),
    "no question": (["ask"], "Missing argument"),
    "unquoted question": (["ask", "who", "signed"], "unexpected extra argument"),
    "no path, and nothing there": (["ingest"], "no documents are there yet: name files or folders"),
    "remove without a path": (["ingest", "--remove"], "--remove is for documents that are gone from a PATH"),
    "unknown prefill": (["ingest", "--prefill", "some", "docs"], "none"),
    "codec": (["ask", "--codec", "int4", "what?"], "none of none, int8, int8-kv8. Did you mean int8"),
    "size": (["ingest", "--disk-budget", "much", "docs"], "not a size"),
    "stream and json": (["ask", "--stream", "--json", "who?"], "choose one"),
    "no prompt to calibrate on": (["calibrate", "--limit", "0"], "--limit"),
    "audit full with full": (["audit", "--mode", "full"], "leave --mode full out"),
    "a share above 1": (["audit", "--min-agreement", "70"], "--min-agreement"),
    "a log that is neither on nor off": (["ask", "--log-questions", "maybe", "who?"], "needs yes or no"),
    "serve the network without keys": (["serve", "--host", "0.0.0.0"], "Make one first"),
    "compare full with full": (["ask", "--compare", "--mode", "full", "who?"], "leave --mode full out"),
}


@pytest.mark.parametrize("arguments, message", BAD.values(), ids=BAD)
def test_bad_usage_is_exit_code_2(arguments: list[str], message: str, home: Path) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in " ".join((done.stderr + done.stdout).split())


def test_a_wrong_settings_file_is_bad_usage(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("topk = 3")
    done = run("info")
    assert done.returncode == 2
    assert "Did you mean top_k" in " ".join(done.stderr.split())


def test_keys_are_commands_of_two_words() -> None:
    done = run("keys", "-h")
    assert done.returncode == 0 and all(f"\n  {word} " in done.stdout for word in ("add", "list", "revoke"))
    assert {"--tenant", "--operator", "--name"} <= set(run("keys", "add", "-h").stdout.split())


FAILS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no documents": (lambda home: ["ask", "who?"], "Make it with hypic-rag ingest"),
    "no such path": (lambda home: ["ingest", str(home / "nothing")], "there is no file or folder"),
    "calibrate on nothing": (lambda home: ["calibrate", "--data", str(home / "nothing")], "there is no file or folder"),
    "audit without documents": (lambda home: ["audit"], "Make it with hypic-rag ingest"),
    "no such key": (lambda home: ["keys", "revoke", "beef"], "hypic-rag keys add makes one"),
    "chat without documents": (lambda home: ["chat"], "Make it with hypic-rag ingest"),
}


@pytest.mark.parametrize("arguments, message", FAILS.values(), ids=FAILS)
def test_a_failure_is_one_line_without_traceback(
    arguments: Callable[[Path], list[str]], message: str, home: Path
) -> None:
    done = run(*arguments(home))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not home.exists() or not any(home.iterdir())  # asking makes nothing
