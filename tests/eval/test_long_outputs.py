"""``hypic-eval codecs --long``: long answers by codec, from the same entries."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.codecs import NONE
from hypic_eval.long_outputs import first_divergence, run_long_outputs, summarise
from hypic_eval.modes import FULL, parse_mode
from hypic_eval.results import ResultRow
from hypic_eval.rows import RowFile

from hypic_rag.engine import Sampling

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny

MODE = parse_mode("hypic:w=8")
PAIRS = {  # ours, theirs, where they part
    "equal": ((1, 2, 3), (1, 2, 3), None),
    "at once": ((1, 2), (2, 2), 0),
    "later": ((1, 2, 3), (1, 2, 4), 2),
    "ends before": ((1, 2), (1, 2, 4), 2),
    "goes on": ((1, 2, 4), (1,), 1),
    "nothing": ((), (), None),
}


@pytest.mark.parametrize("ours, theirs, place", PAIRS.values(), ids=PAIRS)
def test_where_answers_part(ours: Any, theirs: Any, place: int | None) -> None:
    assert first_divergence(ours, theirs) == place


def by_name(rows: list[ResultRow]) -> dict[tuple[str, str], ResultRow]:
    return {(row.mode, row.metric): row for row in rows}


def test_answers_by_codec_and_the_text_of_full(few: Path, tmp_path: Path) -> None:
    import tiny

    engine, path = tiny.engine("qwen3_5_text"), tmp_path / "rows.jsonl"
    results = run_long_outputs(engine, few, ["int8-kv8"], MODE, 48, RowFile(path), limit=2)
    rows = RowFile(path).rows
    assert len(rows) == 4 and all(row["date"] and row["commit"] for row in rows.values())
    assert {len(row["token_ids"]) <= 48 for row in rows.values()} == {True}
    nlls = {(row["codec"], row["id"]): row["nll_of_full"] for row in rows.values()}
    ids = {row["id"] for row in rows.values()}
    assert all(0 < abs(nlls["int8-kv8", id] - nlls[NONE, id]) < 0.2 for id in ids)  # zero: the codec was not used
    assert engine.cache.stats().tiers["host"].n_entries == 2  # the system text by each codec is left

    # The text of full is that of full recompute, and its NLL that of the stored entries.
    from hypic_eval.measure import ask
    from hypic_eval.task import read_questions

    task, questions = read_questions(few, limit=1)
    prompt = ask(engine, task, questions[0]).prompt
    text = engine.generate(prompt, Sampling(max_new_tokens=48), policy=FULL.policy)
    ended = engine.format.answer_end if text.finish_reason == "stop" else ()
    wanted = engine.score(prompt, text.token_ids + ended, policy=MODE.policy).nll
    assert nlls[NONE, questions[0].id] == pytest.approx(wanted, abs=1e-5)

    before = path.read_text()
    again = run_long_outputs(engine, few, ["int8-kv8"], MODE, 48, RowFile(path), limit=2)
    assert again.rows == results.rows and path.read_text() == before


@pytest.mark.parametrize("ignore_end", [False, True])
def test_answers_go_on_behind_their_end_where_asked_to(few: Path, ignore_end: bool) -> None:
    import tiny
    from hypic_eval.measure import ask
    from hypic_eval.task import read_questions

    engine, file = tiny.engine("qwen3_5_text"), RowFile(None)
    task, questions = read_questions(few, limit=1)
    prompt = ask(engine, task, questions[0]).prompt
    second = engine.generate(prompt, Sampling(max_new_tokens=2), policy=MODE.policy).token_ids[1]
    engine.__dict__["_ends"] = frozenset([second])  # the model ends behind its first token, if not before
    run_long_outputs(engine, few, ["int8"], MODE, 12, file, limit=1, ignore_end=ignore_end)
    assert [told["codec"] for told in file.rows.values()] == [NONE, "int8"]
    for told in file.rows.values():
        assert (len(told["token_ids"]) > 1, told["finish_reason"]) == (ignore_end, "length" if ignore_end else "stop")
        assert told["ignore_end"] == ignore_end
    assert engine.__dict__["_ends"] == {second}


def row(token_ids: tuple[int, ...], nll: float, finish_reason: str = "length") -> dict[str, Any]:
    about = {"commit": "c", "date": "d", "machine": "m"}
    return {**about, "token_ids": list(token_ids), "nll_of_full": nll, "finish_reason": finish_reason}


def test_figures_of_rows() -> None:
    import tiny

    measured = {
        NONE: [row((1, 2, 3, 4), 1.0), row((5, 6), 2.0, "stop"), row((7, 7, 7), 3.0, "repetition")],
        "int8": [row((1, 2, 9, 9), 1.1), row((5, 6), 2.0, "stop"), row((8,), 3.5, "stop")],
    }
    found = by_name(summarise(tiny.engine("qwen3_5_text"), "few", "qa", MODE, measured))
    assert found["int8", "first divergence"].value == 2  # of 2, 2 (its length) and 0
    assert found["int8", "no divergence"].value == pytest.approx(100 / 3)
    assert found[NONE, "ends in circles"].value == pytest.approx(100 / 3)
    assert found["int8", "ends in circles"].value == 0
    difference = found["int8", "NLL of full's text"].to_full
    assert difference is not None and difference["value"] == pytest.approx(0.2)
    assert (NONE, "first divergence") not in found and found[NONE, "length"].value == 3
