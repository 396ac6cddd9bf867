"""hypic-qualify: help without torch, bad usage, and that hypic-eval has none of its commands."""

import subprocess
import sys

import pytest
from hypic_eval.cli import app as evaluation
from hypic_qualify.cli import app, main

COMMANDS = ["load", "overhead", "crash", "flips", "tenants"]
NO_TORCH = """
import sys
from hypic_qualify.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules and "transformers" not in sys.modules, "help loads torch"
"""


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=["list", *COMMANDS])
def test_help_loads_no_torch(command: list[str]) -> None:
    run = subprocess.run([sys.executable, "-c", NO_TORCH, *command, "--help"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    if not command:
        assert run.stdout.splitlines()[1].split()[:2] == ["hypic-qualify", "load"]


@pytest.mark.parametrize("arguments", [["krash"], ["load", "--seconds", "1"], ["overhead", "--dtype", "int3"]])
def test_bad_usage_is_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["hypic-qualify", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_the_evaluation_has_none_of_them() -> None:
    names = [{command.name for command in one.registered_commands} for one in (app, evaluation)]
    assert names[0] == set(COMMANDS) and not names[0] & names[1]
