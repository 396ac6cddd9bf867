"""Sweeps: what each axis does to a question, worked out by hand, and what a run keeps and shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import parse_modes
from hypic_eval.rows import RowFile
from hypic_eval.sweep import VALUES, run_sweep, vary
from hypic_eval.task import Question

from hypic_rag.errors import BadInput
from hypic_rag.prompt import PromptFormat

Make = Callable[..., Any]
DOCUMENTS = tuple((name, f"Text of {name}.") for name in "abcdef")
GOLD = (DOCUMENTS[2], DOCUMENTS[4])  # c, e
QUESTION = Question("1", "Where?", DOCUMENTS, ("Here",), GOLD)
OTHER = Question("2", "Who?", (("x", "Text."), ("y", "Text.")), ("She",))

CHANGED = {  # axis, place, titles of the documents then
    "the answer's documents stay": ("documents", 2, "ce"),
    "others fill up from the first": ("documents", 4, "abce"),
    "fewer than the answer's": ("documents", 1, "c"),
    "all there are": ("documents", 6, "abcdef"),
    "the order of the data set": ("order", 0, "abcdef"),
    "first": ("gold", 0, "ceabdf"),
    "in the middle": ("gold", 0.5, "abcedf"),
    "last": ("gold", 1, "abdfce"),
    "the seam leaves documents alone": ("seam", 8, "abcdef"),
}


@pytest.mark.parametrize("axis, x, titles", CHANGED.values(), ids=CHANGED)
def test_what_an_axis_does(form: PromptFormat, axis: str, x: float, titles: str) -> None:
    changed = vary(form, axis, x, [QUESTION, OTHER], 0)
    assert "".join(title for title, _ in changed.documents) == titles
    assert (changed.text, changed.answers, changed.gold) == ("Where?", ("Here",), GOLD)


def test_more_documents_come_of_other_questions(form: PromptFormat) -> None:
    changed = vary(form, "documents", 8, [QUESTION, OTHER], 0)
    assert sorted(title for title, _ in changed.documents) == list("abcdefxy")


def test_a_shuffle_is_of_its_seed_and_question(form: PromptFormat) -> None:
    orders = {seed: vary(form, "order", seed, [QUESTION], 0).documents for seed in range(1, 6)}
    assert all(sorted(order) == sorted(DOCUMENTS) for order in orders.values())
    assert len(set(orders.values())) == 5 and DOCUMENTS not in orders.values()
    assert vary(form, "order", 1, [QUESTION], 0).documents == orders[1]


def test_segments_of_a_size_have_the_same_text(form: PromptFormat) -> None:
    documents = tuple((f"T{i}", " ".join(f"Sentence {j} of document {i}." for j in range(30))) for i in range(4))
    question = Question("1", "Where?", documents, ("Here",))
    counts = {}
    for size in (64, 256, 2048):
        changed = vary(form, "size", size, [question], 0).documents
        assert all(len(form.document(text, title)) <= size for title, text in changed)
        text = " ".join(text for _, text in changed)
        assert all(text.count(f"Sentence {j} of document {i}.") == 1 for i in range(4) for j in range(30))
        counts[size] = len(changed)
    assert counts[64] > counts[256] > counts[2048] == 1


def test_gold_that_is_not_told_cannot_be_moved(form: PromptFormat) -> None:
    with pytest.raises(BadInput, match="question 2: none of its docs is marked gold"):
        vary(form, "gold", 0, [OTHER], 0)


@pytest.mark.parametrize("axis, x", [("seam", 0.5), ("seam", -1), ("documents", 0), ("size", 63), ("gold", 1.5)])
def test_places_off_an_axis_are_refused(make_engine: Make, few: Path, axis: str, x: float) -> None:
    with pytest.raises(BadInput, match=f"{axis} cannot be {x:g}: give a"):
        run_sweep(make_engine(), few, axis, [x], parse_modes("full,hypic"), RowFile(None))


def test_seams_are_swept_and_the_other_modes_measured_once(make_engine: Make, few: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    modes = parse_modes("none,full,hypic,last_state")
    results = run_sweep(make_engine(), few, "seam", [0, 8], modes, RowFile(path), limit=2)
    scores = [row for row in results.rows if row.metric == "F1"]
    places = [(row.mode, row.settings["sweep"]["mode"], row.settings["sweep"]["x"]) for row in scores]
    assert places == [
        ("none", "none", None), ("full", "full", None), ("hypic:w=0", "hypic", 0), ("last_state:w=0", "last_state", 0),
        ("hypic:w=8", "hypic", 8), ("last_state:w=8", "last_state", 8),
    ]  # fmt: skip
    assert len(path.read_text().splitlines()) == 2 * 6
    with pytest.raises(BadInput, match="none of the modes has a seam"):
        run_sweep(make_engine(), few, "seam", [0], parse_modes("full"), RowFile(None))


def test_rows_tell_their_place_and_are_not_measured_again(make_engine: Make, few: Path, tmp_path: Path) -> None:
    path, modes = tmp_path / "rows.jsonl", parse_modes("full,hypic")
    results = run_sweep(make_engine(), few, "documents", [2, 5], modes, RowFile(path), limit=2)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    places = sorted((row["axis"], row["x"], row["n_documents"]) for row in rows)
    assert places == [("documents", 2, 2)] * 4 + [("documents", 5, 5)] * 4
    modes_shown = {row.mode for row in results.rows}
    assert modes_shown == {f"{mode}, documents {x}" for mode in ("full", "hypic:w=8") for x in (2, 5)}
    again = make_engine()
    run_sweep(again, few, "documents", [2, 5], modes, RowFile(path), limit=2)
    assert again.calls == []


def test_every_axis_has_values_of_its_own(form: PromptFormat) -> None:
    for axis, values in VALUES.items():
        assert all(vary(form, axis, x, [QUESTION, OTHER], 0).documents for x in values)
