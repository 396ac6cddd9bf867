"""The quality run over an engine without a model: what is asked, kept, dropped, forgotten, and reported."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import parse_modes
from hypic_eval.quality import run_quality
from hypic_eval.results import ResultRow
from hypic_eval.rows import RowFile

from hypic_rag.errors import ContextTooLong

MODES = parse_modes("hypic:w=0,full,last_state")
Make = Callable[..., Any]


def test_every_figure_with_its_difference_to_full(make_engine: Make, few: Path) -> None:
    results = run_quality(make_engine(), [few], MODES, RowFile(None), limit=3)
    rows = {(row.mode, row.metric): row for row in results.rows}
    assert len(rows) == 3 * 6
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
    assert [undated(row) for row in results.rows] == [undated(row) for row in whole.rows]
    third = make_engine()
    run_quality(third, [few], MODES, RowFile(path), limit=2)
    assert third.calls == []


def undated(row: ResultRow) -> ResultRow:
    return replace(row, settings={name: value for name, value in row.settings.items() if name != "dates"})


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
    assert not any("PGR" in text for text in (*results.notes, *(row.metric for row in results.rows)))


def test_progress_counts_rows(make_engine: Make, few: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    run_quality(make_engine(), [few], MODES, RowFile(None), None, 2, lambda *told: seen.append(told))
    assert seen == [("hotpotqa_few", done, 6) for done in range(1, 7)]


def test_the_share_kept_of_what_documents_are_worth(make_engine: Make, few: Path) -> None:
    modes = parse_modes("none,full,prefix,hypic:w=0")
    engine = make_engine()
    engine.nlls = {"none": 3.0, "full": 1.0, "hypic": 1.5}
    results = run_quality(engine, [few], modes, RowFile(None))
    shares = {row.mode: (row.value, row.interval, row.unit) for row in results.rows if row.metric == "PGR (answer NLL)"}
    assert shares == {"prefix": (0.75, (0.75, 0.75), "ratio"), "hypic:w=0": (0.75, (0.75, 0.75), "ratio")}
    assert not any(row.metric == "PGR (F1)" for row in results.rows)  # every answer is wrong in every mode
    [why] = [note for note in results.notes if "PGR" in note]
    assert why.startswith("hotpotqa_few: no PGR of F1: full - none is 0 [0, 0]")


def test_times_are_of_a_warm_cache(make_engine: Make, few: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results = run_quality(make_engine(), [few], parse_modes("none,full,prefix,hypic:w=0"), RowFile(path), limit=2)
    times = {row.mode: row.value for row in results.rows if row.metric == "time to first token"}
    assert times == {"none": 100.0, "full": 100.0, "prefix": 4.0, "hypic:w=0": 4.0}
    rows = {(row["id"], row["mode"]): row for row in map(json.loads, path.read_text().splitlines())}
    assert len(rows) == 8
    for (id, mode), row in rows.items():
        whole = rows[id, "full"]["prompt_tokens"]
        assert (row["prompt_tokens"] == whole) == (mode != "none")
        assert (row["computed_tokens"] < 60) == (mode in ("hypic:w=0", "none")), (mode, row["computed_tokens"])
        assert row["n_documents"] == (0 if mode == "none" else 10)
        assert row["date"] and row["machine"] and row["versions"]["torch"] and row["model"] == "fake weights"
        assert row["policy"]["mode"] == ("full" if mode in ("none", "full") else "hypic")


def test_parts_into_one_file_are_the_whole(make_engine: Make, few: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for i in (1, 2, 3):
        part = run_quality(make_engine(), [few], MODES, RowFile(path), None, 4, part=(i, 3))
        assert part.rows[0].n == (2 if i == 1 else 1)
        assert len(path.read_text().splitlines()) == {1: 6, 2: 9, 3: 12}[i]
    engine = make_engine()
    whole = run_quality(engine, [few], MODES, RowFile(path), None, 4)
    assert whole.rows[0].n == 4 and engine.calls == []
    empty = run_quality(make_engine(), [few], MODES, RowFile(None), None, 2, part=(3, 3))
    assert empty.rows == [] and empty.notes == ["hotpotqa_few: part 3 of 3 has none of 2 questions."]
