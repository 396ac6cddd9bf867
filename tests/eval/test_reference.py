"""The default model's answers, question by question, are those of the independent implementation."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.cli import main
from hypic_eval.reference import exchanged, read_reference, run_reference
from hypic_eval.results import Results
from hypic_eval.rows import RowFile

from hypic_rag.errors import BadInput

MODES = ("full", "hypic:w=8", "hypic:w=32", "hypic:w=0", "last_state:w=8", "add:w=8")


@pytest.mark.timeout(900)  # a minute of work for a core, much longer on a busy machine
def test_the_default_model_agrees_with_the_reference(
    default_model_folder: Path,
    few: Path,
    reference_few: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["hypic-eval", *arguments, "--model", str(default_model_folder)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    out, rows = tmp_path / "reference.json", tmp_path / "rows.jsonl"
    files = [str(few), str(reference_few)]
    code = run("reference", *files, "--limit", "1", "--out", str(out), "--rows", str(rows))
    table = capsys.readouterr().out
    assert code == 0, table
    results = Results.load(out)
    assert results.details == []
    assert {row.value for row in results.rows if row.metric == "same first token"} == {100.0}
    # Rounding moves these by 1e-4 at most, taking last_state for exact by 0.05 and more.
    apart = [row.value for row in results.rows if row.metric in ("largest KL apart", "largest NLL apart")]
    assert len(apart) == 2 * len(MODES) and max(apart) < 2e-3

    # The same rows serve the quality command: nothing is measured again.
    before = rows.read_text()
    quality = tmp_path / "quality.json"
    given = ["--modes", ",".join(MODES), "--limit", "1", "--out", str(quality), "--rows", str(rows)]
    assert run("quality", str(few), *given) == 0
    assert rows.read_text() == before
    shown = {(row.mode, row.metric): row for row in Results.load(quality).rows}
    theirs = [json.loads(line) for line in reference_few.read_text().splitlines()]
    for mode, row in zip(MODES, theirs, strict=False):  # the first question's rows
        assert mode in (row["mode"], f"{row['mode']}:w={row['seam_tokens']}")
        assert shown[mode, "F1"].value == pytest.approx(100 * row["f1"], abs=1e-2)


def test_disagreement_is_a_missed_goal(
    make_engine: Callable[..., Any], few: Path, reference_few: Path, tmp_path: Path
) -> None:
    one_gap_is_small = change(reference_few, tmp_path, lambda rows: rows[11].update(top2_gap=0.0055))
    results = run_reference(make_engine(), few, one_gap_is_small, RowFile(None), limit=2)
    missed = {(row.mode, row.metric) for row in results.missed_goals}
    assert ("full", "same answer") in missed and ("hypic:w=8", "mean KL apart") in missed
    assert not any(metric == "same prompt tokens" for _, metric in missed)
    assert len(results.details) == 12
    assert results.details[0]["reference's first top-2 gap"] == 4.0894
    assert results.notes[0] == "0 of 12 answers are equal to the reference's."
    told = "within 0.01 nats (rounding in float32 may exchange them): 1 of 12; where they are further apart: 11."
    assert results.notes[1].endswith(told)  # all differ, and the reference has one gap of less than that
    assert ("full", "first tokens that differ beyond the bound") in missed


ROW = {"first_token": 7, "top2_gap": 0.3}
PAIRS = {
    "equal": ({}, (0, 0)),
    "equal, with a small gap": ({"top2_gap": 0.001}, (0, 0)),
    "another, further apart": ({"first_token": 8}, (0, 1)),
    "another, at the bound": ({"first_token": 8, "top2_gap": 0.01}, (0, 1)),
    "another, with a small gap": ({"first_token": 8, "top2_gap": 0.009}, (1, 0)),
}


@pytest.mark.parametrize("other, counted", PAIRS.values(), ids=PAIRS)
def test_first_tokens_are_told_by_their_gap(other: dict[str, Any], counted: tuple[int, int]) -> None:
    assert exchanged([(ROW, ROW | other)], 0.01) == exchanged([(ROW | other, ROW)], 0.01) == counted


def change(path: Path, tmp_path: Path, edit: Callable[[list[dict[str, Any]]], None]) -> Path:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edit(rows)
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return changed


BAD: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "a field is missing": (lambda rows: rows[1].pop("top2_gap"), "line 2: a reference row needs top2_gap"),
    "a mode lacks a question": (lambda rows: rows.pop(), "mode add:w=8 answers 3"),
    "an unknown mode": (lambda rows: rows[0].update(mode="exact"), "no mode"),
}


@pytest.mark.parametrize("edit, told", BAD.values(), ids=BAD)
def test_a_bad_reference_is_told(
    reference_few: Path, tmp_path: Path, edit: Callable[[list[dict[str, Any]]], Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        read_reference(change(reference_few, tmp_path, edit))


def test_questions_of_another_file_are_told(
    make_engine: Callable[..., Any], few: Path, reference_few: Path, tmp_path: Path
) -> None:
    data = change(few, tmp_path, lambda rows: rows.pop(0) and None)
    with pytest.raises(BadInput, match="has no question 5a88a1e55542997e5c09a64d"):
        run_reference(make_engine(), data, reference_few, RowFile(None))
