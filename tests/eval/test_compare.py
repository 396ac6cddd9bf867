"""Comparing two runs: values and verdicts worked out by hand, over the questions that both have."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.cli import main
from hypic_eval.compare import compare_runs, verdict
from hypic_eval.results import Results

from hypic_rag.errors import BadInput

F1 = {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.5}


def write(path: Path, changes: dict[str, float], mode: str = "hypic:w=8", **fields: Any) -> Path:
    """A run whose F1 are those above with these on top; its NLL is 1 throughout."""
    about = {"task": "qa", "mode": mode, "data": "few", "commit": path.stem, "model": "0123456789abcdef", **fields}
    rows = [{"key": id, "id": id, "f1": value, "nll": 1.0, **about} for id, value in {**F1, **changes}.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_changed_beyond_noise(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {})
    second = write(tmp_path / "b.jsonl", {id: value + 0.25 for id, value in F1.items()})
    results = compare_runs(first, second)
    rows = {row.metric: row for row in results.rows}
    assert rows["F1"].value == pytest.approx(75.0) and rows["F1"].to_full["value"] == pytest.approx(25.0)
    assert rows["F1"].to_full["interval"] == pytest.approx((25.0, 25.0))
    assert (rows["F1"].n, rows["F1"].commit, rows["F1"].model) == (4, "a → b", "0123456789ab")
    assert "few, hypic:w=8, F1: +25 [+25, +25] %: better." in results.notes
    assert "few, hypic:w=8, answer NLL: +0 [+0, +0] nats: within noise." in results.notes


def test_a_change_of_one_question_is_noise(tmp_path: Path) -> None:
    results = compare_runs(write(tmp_path / "a.jsonl", {}), write(tmp_path / "b.jsonl", {"a": 1.0}))
    [note] = [note for note in results.notes if ", F1: " in note]
    assert note.startswith("few, hypic:w=8, F1: +25 [+0, ") and note.endswith("within noise.")


def test_only_common_questions_count(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", {}), write(tmp_path / "b.jsonl", {"e": 1.0})
    results = compare_runs(first, second)
    assert {row.n for row in results.rows} == {4}
    assert "few, hypic:w=8: 1 questions are in one run only, and are left out." in results.notes


def test_points_of_a_sweep_are_told_apart(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {}, axis="documents", x=2)
    with pytest.raises(BadInput, match="no question in common: few in hypic:w=8, documents 2 against few in hypic"):
        compare_runs(first, write(tmp_path / "b.jsonl", {}, axis="documents", x=5))


VERDICTS = {  # interval, arrow, word
    "more is better": ((0.1, 0.2), "↑", "better"),
    "less is better": ((0.1, 0.2), "↓", "worse"),
    "less is better, and it is less": ((-0.2, -0.1), "↓", "better"),
    "more is better, and it is less": ((-0.2, -0.1), "↑", "worse"),
    "0 is in it": ((-0.1, 0.2), "↑", "within noise"),
    "0 is its end": ((0.0, 0.2), "↑", "within noise"),
    "none": (None, "↑", "one question tells nothing"),
}


@pytest.mark.parametrize("bounds, arrow, word", VERDICTS.values(), ids=VERDICTS)
def test_a_word_for_an_interval(bounds: tuple[float, float] | None, arrow: str, word: str) -> None:
    assert verdict(bounds, arrow) == word


def test_the_command_takes_results_with_their_rows_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        Results("quality", {}, []).save(tmp_path / f"{name}.json")
        write(tmp_path / f"{name}.rows.jsonl", {})
    out = tmp_path / "c.json"
    monkeypatch.setattr(
        sys, "argv", ["hypic-eval", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(out)]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "| hypic:w=8 | 50.0 [" in capsys.readouterr().out and Results.load(out).kind == "compare"


def test_rows_of_no_question_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"key": "1", "kill": 3}) + "\n")
    with pytest.raises(BadInput, match="of no question"):
        compare_runs(tmp_path / "a.jsonl", tmp_path / "a.jsonl")
