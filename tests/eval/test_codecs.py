"""``hypic-eval codecs``: the same entries by every codec, and what is made of the rows."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.cli import main
from hypic_eval.codecs import summarise
from hypic_eval.measure import ask
from hypic_eval.modes import parse_mode
from hypic_eval.results import Results
from hypic_eval.task import read_questions

MODE = parse_mode("hypic:w=8")
BEYOND = "F1: how far Δ's interval is from 0"


def test_the_default_model_by_codec(
    few: Path,
    default_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "codecs.json"
    given = ["codecs", str(few), "--limit", "1", "--out", str(out), "--model", str(default_model_folder)]
    monkeypatch.setattr(sys, "argv", ["hypic-eval", *given])

    def run() -> int:
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert run() == 0, capsys.readouterr().out
    shown = {(row.mode, row.metric): row.value for row in Results.load(out).rows}
    none, int8, kv8 = (shown[codec, "bytes a segment"] for codec in ("none", "int8", "int8-kv8"))
    assert none / 2.5 > int8 > kv8 > none / 5
    kls = [shown[codec, "first-token KL to none"] for codec in ("int8", "int8-kv8")]
    assert all(0 < kl < 5 for kl in kls)  # zero: the codec was not used
    rows = (tmp_path / "codecs.rows.jsonl").read_text()
    assert len(rows.splitlines()) == 3
    assert run() == 0
    assert (tmp_path / "codecs.rows.jsonl").read_text() == rows  # nothing was measured again


def row(**changes: Any) -> dict[str, Any]:
    same = {"f1": 0.5, "em": 0.0, "rouge_l": 0.5, "nll": 1.0, "kl": 0.0, "first_token": 7, "answer": "a"}
    return {**same, "commit": "c", "stored_bytes": [2**20, 3 * 2**20], **changes}


def test_goals_and_intervals(make_engine: Callable[..., Any], few: Path) -> None:
    engine = make_engine()
    task, questions = read_questions(few, limit=2)
    asked = [ask(engine, task, question) for question in questions]
    good = [row(kl=0.002), row(kl=0.004)]
    bad = [row(kl=0.002, f1=0.2), row(kl=0.02, f1=0.3, first_token=8)]
    result, notes = summarise(engine, "few", asked, MODE, {"none": [row(), row()], "int8": good, "int8-kv8": bad})
    found = {(one.mode, one.metric): one for one in result}
    assert found["int8", "first-token KL to none"].value == pytest.approx(3)
    assert found["int8", "bytes a segment"].value == 2
    assert {(one.mode, one.metric) for one in result if one.misses_goal} == {
        ("int8-kv8", "first-token KL to none"),
        ("int8-kv8", "same first token"),
        ("int8-kv8", BEYOND),
    }
    assert (found["int8", BEYOND].value, found["int8-kv8", BEYOND].value) == (0, pytest.approx(20))
    difference = found["int8-kv8", "F1"].to_full
    assert difference is not None and difference["value"] == pytest.approx(-25)
    assert "int8, F1: the interval of the difference has 0 in it." in notes
    assert "int8-kv8, F1: the interval of the difference does NOT have 0 in it." in notes
