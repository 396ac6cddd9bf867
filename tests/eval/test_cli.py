"""The command line: help without torch, exit codes, errors without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypic_eval.cli import app, main

NO_TORCH = """
import sys
from hypic_eval.cli import main
sys.argv = ["hypic-eval", *sys.argv[1:]]
try:
    main()
finally:
    assert "torch" not in sys.modules and "transformers" not in sys.modules, "help loads torch"
"""


@pytest.mark.parametrize(
    "command",
    [
        [], ["quality"], ["reference"], ["sweep"], ["compare"], ["report"], ["ttft"], ["replay"], ["gpu"], ["codecs"],
        ["table"],
    ],
)  # fmt: skip
def test_help_loads_no_torch(command: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", NO_TORCH, *command, "--help"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    if not command:
        assert run.stdout.splitlines()[1].split()[:2] == ["hypic-eval", "quality"]


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hypic-eval", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


USAGE = {
    "unknown command": ["qualty"],
    "no file": ["quality"],
    "a file that is not there": ["quality", "nowhere.jsonl"],
    "an unknown mode": ["quality", __file__, "--modes", "hypik"],
    "a limit of nothing": ["quality", __file__, "--limit", "0"],
    "an unknown codec": ["codecs", __file__, "--codecs", "int4"],
    "a codec in full": ["codecs", __file__, "--mode", "full"],
    "short answers without an end": ["codecs", __file__, "--ignore-end"],
    "a codec of nothing stored": ["codecs", __file__, "--mode", "selective"],
    "a mode that the product has not": ["plain-use", str(Path(__file__).parent), "--mode", "kv_only"],
    "an unknown dtype": ["quality", __file__, "--dtype", "int3"],
    "no data": ["ttft"],
    "an unknown axis": ["sweep", __file__, "--axis", "depth"],
    "values that are no numbers": ["sweep", __file__, "--axis", "seam", "--values", "a,b"],
    "an order of nothing retrieved": ["quality", __file__, "--order", "nearest-first"],
    "an unknown order": ["quality", __file__, "--retrieve", "3", "--order", "sideways"],
    "an unknown search": ["plain-use", str(Path(__file__).parent), "--search", "sparse"],
    "an unknown way to replay": ["replay", __file__, "--modes", "last_state"],
    "unknown arrivals": ["replay", __file__, "--arrivals", "uniform"],
    "an axis of no values": ["sweep", __file__, "--axis", "budget", "--values", "much"],
    "no such part": ["quality", __file__, "--part", "3/2"],
    "no folder for a report": ["report", __file__],
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE)
def test_bad_usage_is_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert exit_code(monkeypatch, *arguments) == 2


def test_a_failure_is_1_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert exit_code(monkeypatch, "table", str(tmp_path / "results.json")) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ") and len(told.err.splitlines()) == 1


def test_every_command_has_help() -> None:
    assert all(command.callback and command.callback.__doc__ for command in app.registered_commands)
