"""The quality run over an engine without a model: what is asked, kept, dropped, forgotten, and reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import parse_modes
from hypic_eval.quality import run_quality
from hypic_eval.rows import RowFile

from hypic_rag.errors import ContextTooLong

MODES = parse_modes("hypic:w=0,full,last_state")
Make = Callable[..., Any]


def test_every_figure_with_its_difference_to_full(make_engine: Make, few: Path) -> None:
    results = run_quality(make_engine(), [few], MODES, RowFile(None), limit=3)
    rows = {(row.mode, row.metric): row for row in results.rows}
    assert len(rows) == 3 * 5
    kl = rows["hypic:w=0", "first-token KL to full"]
    assert kl.value == pytest.approx(0.25 * 0.693147, abs=1e-6)  # odds 4:2:2 against 2:4:2
    assert rows["full", "first-token KL to full"].value == 0
    nll = rows["last_state:w=8", "answer NLL"]
    assert (nll.n, nll.arrow, nll.value, nll.interval) == (3, "↓", 1.5, (1.5, 1.5))
    assert nll.to_full == {"value": 0.5, "interval": (0.5, 0.5)}
    assert rows["full", "answer NLL"].to_full is None
    assert {row.data for row in results.rows} == {"hotpotqa_few"}
    assert {row.model for row in results.rows} == {"fake"}


def test_answers_are_first_lines_and_scored(make_engine: Make, few: Path, tmp_path: Path) -> None:
    engine = make_engine()
    engine.answers = {"full": "Ericsson Stadium\nmore", "hypic": "the stadium"}
    rows = RowFile(tmp_path / "rows.jsonl")
    run_quality(engine, [few], MODES, rows, limit=1)
    kept = {row["mode"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert (kept["full"]["answer"], kept["full"]["f1"], kept["full"]["em"]) == ("Ericsson Stadium", 1.0, 1.0)
    assert kept["hypic:w=0"]["f1"] == pytest.approx(2 / 3)
    assert (kept["full"]["n_documents"], kept["full"]["n_dropped"]) == (10, 0)
    assert kept["full"]["first_token"] == 0 and kept["hypic:w=0"]["first_token"] == 1


def test_an_interrupted_run_goes_on(make_engine: Make, few: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    engine = make_engine()
    engine.fails_after = 9  # in the second question
    with pytest.raises(KeyboardInterrupt):
        run_quality(engine, [few], MODES, RowFile(path), limit=2)
    n_before = len(path.read_text().splitlines())
    assert 3 <= n_before < 6
    again = make_engine()
    results = run_quality(again, [few], MODES, RowFile(path), limit=2)
    assert len([call for call in again.calls if call[0] == "generate"]) == 6 - n_before
    whole = run_quality(make_engine(), [few], MODES, RowFile(None), limit=2)
    assert results.rows == whole.rows
    third = make_engine()
    run_quality(third, [few], MODES, RowFile(path), limit=2)
    assert third.calls == []


CHANGES: dict[str, Callable[[Any], None]] = {
    "weights": lambda engine: setattr(engine, "fingerprint", "other"),
    "context, so other documents": lambda engine: setattr(engine, "context_length", 700),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_setting_is_measured_anew(
    make_engine: Make, few: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    path = tmp_path / "rows.jsonl"
    run_quality(make_engine(), [few], MODES, RowFile(path), limit=1)
    engine = make_engine()
    change(engine)
    run_quality(engine, [few], MODES, RowFile(path), limit=1)
    assert len([call for call in engine.calls if call[0] == "generate"]) == 3


def test_a_questions_segments_leave_the_cache(make_engine: Make, few: Path) -> None:
    engine = make_engine()
    run_quality(engine, [few], parse_modes("full,hypic:w=0,hypic:w=32,add"), RowFile(None), limit=2)
    assert engine.cache.stats().tiers["host"].n_entries == 1  # the leading segment


def test_segments_leave_the_cache_when_a_run_fails(make_engine: Make, few: Path) -> None:
    engine = make_engine()
    engine.fails_after = 4
    with pytest.raises(KeyboardInterrupt):
        run_quality(engine, [few], MODES, RowFile(None), limit=1)
    assert engine.cache.stats().tiers["host"].n_entries == 1


def test_documents_beyond_the_context_are_dropped_and_told(make_engine: Make, few: Path) -> None:
    engine = make_engine(context_length=400)
    results = run_quality(engine, [few], MODES, RowFile(None))
    [note] = results.notes
    assert note.startswith("hotpotqa_few: ") and "of 40 documents did not fit the context of 400" in note
    assert "in 4 of 4 questions" in note


def test_a_question_beyond_the_context_is_told(make_engine: Make, few: Path) -> None:
    with pytest.raises(ContextTooLong, match="fake takes 40 tokens, 12 of them kept"):
        run_quality(make_engine(context_length=40), [few], MODES, RowFile(None))


def test_without_full_there_is_kl_but_no_difference(make_engine: Make, few: Path) -> None:
    engine = make_engine()
    results = run_quality(engine, [few], parse_modes("hypic"), RowFile(None), limit=1)
    assert all(row.to_full is None for row in results.rows)
    assert engine.calls == [("score", "full", 8), ("generate", "hypic", 8), ("score", "hypic", 8)]


def test_progress_counts_rows(make_engine: Make, few: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    run_quality(make_engine(), [few], MODES, RowFile(None), None, 2, lambda *told: seen.append(told))
    assert seen == [("hotpotqa_few", done, 6) for done in range(1, 7)]
