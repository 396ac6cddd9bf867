"""How commands end: what is printed, and the exit code."""

from pathlib import Path
from typing import Any

import pytest
import typer
from hypic_eval.commands.report_results import hold_to_goals, show
from hypic_eval.results import ResultRow, Results


def results(**changes: Any) -> Results:
    row: dict[str, Any] = {
        **{"task": "qa", "version": 1, "data": "few", "n": 2, "mode": "full", "metric": "F1", "arrow": "↑"},
        **{"unit": "%", "value": 50.0, "interval": None, "model": "m", "commit": "c"},
    }
    return Results("quality", {"cpu": "one"}, [ResultRow(**{**row, **changes})])


def test_what_is_shown_was_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    results().save(out)
    assert show(out, tmp_path / "rows.jsonl").rows == results().rows
    told = capsys.readouterr()
    assert "| full | 50.0 |" in told.out
    assert told.err == f"Results are in {out}, rows in {tmp_path / 'rows.jsonl'}.\n"


ENDS: dict[str, tuple[dict[str, Any], list[str], str | None]] = {
    "no goal": ({}, [], None),
    "a goal that is met": ({"goal": 50.0}, [], None),
    "a goal that is missed": ({"goal": 50.5}, [], "goal missed: full, F1: 50, wanted ↑ 50.5\n"),
    "a figure that does not count": ({"settings": {"void": "a check failed"}}, [], ""),
    "something that failed": ({}, ["figure ttft: OutOfMemoryError"], "failed: figure ttft: OutOfMemoryError\n"),
}


@pytest.mark.parametrize("changes, failures, told", ENDS.values(), ids=ENDS)
def test_exit_code(
    changes: dict[str, Any], failures: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if told is None:
        hold_to_goals(results(**changes), failures)
        return
    with pytest.raises(typer.Exit) as ended:
        hold_to_goals(results(**changes), failures)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == told
