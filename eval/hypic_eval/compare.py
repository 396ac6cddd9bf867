"""What changed between two runs beyond noise: the same questions in the same modes, paired."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypic_eval.intervals import HOW, mean, paired_difference
from hypic_eval.machine import describe_machine
from hypic_eval.metrics import METRICS, Metric
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import rows_beside
from hypic_eval.task import read_rows
from hypic_rag.errors import BadInput

Run = dict[tuple[str, str], dict[str, dict[str, Any]]]
"""(data set, mode) -> id of a question -> its row."""


def compare_runs(first: Path, second: Path) -> Results:
    """Compare two runs, each a file of rows or of results with its rows beside it.

    Values are those of the second; Δ is second - first, over the questions that both have. Notes call a difference
    better or worse where its 95% interval, paired, does not have 0 in it. Raises BadInput where nothing is in both.
    """
    before, after = run_of(first), run_of(second)
    common = [place for place in before if place in after and before[place].keys() & after[place].keys()]
    if not common:
        raise BadInput(
            f"{first} and {second} have no question in common: {told(before)} against {told(after)}. Measure the same "
            "questions in the same modes"
        )
    result: list[ResultRow] = []
    notes = [f"Δ is {second.name} - {first.name}, question by question."]
    for place in common:
        ids = [id for id in before[place] if id in after[place]]
        pairs = [(before[place][id], after[place][id]) for id in ids]
        n_lost = len(before[place].keys() ^ after[place].keys())
        if n_lost:
            notes.append(f"{place[0]}, {place[1]}: {n_lost} questions are in one run only, and are left out.")
        for metric in METRICS.values():
            if all(metric.name in row for pair in pairs for row in pair):
                row, note = compared(place, metric, pairs)
                result.append(row)
                notes.append(note)
    notes.append(f"{len(result)} figures: where nothing changed, one in twenty is called better or worse by chance.")
    return Results("compare", describe_machine(), result, notes)


def run_of(path: Path) -> Run:
    """Read a run's rows. Raises BadInput where there are none of a question."""
    rows = read_rows(path if path.suffix == ".jsonl" else rows_beside(path))
    run: Run = {}
    for row in rows:
        if not {"id", "mode", "task"} <= row.keys():
            raise BadInput(f"{path} has rows that are of no question; give files of hypic-eval quality or sweep")
        mode = row["mode"] + (f", {row['axis']} {row['x']}" if "axis" in row else "")
        run.setdefault((str(row.get("data", row["task"])), mode), {}).setdefault(row["id"], row)
    return run


def told(run: Mapping[tuple[str, str], Any]) -> str:
    """Name what a run has, shortly."""
    return "; ".join(f"{data} in {mode}" for data, mode in list(run)[:4]) + ("; …" if len(run) > 4 else "")


def compared(
    place: tuple[str, str], metric: Metric, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> tuple[ResultRow, str]:
    """Make the row of one figure, and the sentence on it."""
    before, after = ([row[metric.name] for row in rows] for rows in zip(*pairs, strict=True))
    own, difference = metric.shown(mean(after)), metric.shown(paired_difference(after, before))
    rows = [row for _, row in pairs]
    row = ResultRow(
        task=f"{rows[0]['task']} compared",
        version=1,
        data=place[0],
        n=len(pairs),
        mode=place[1],
        metric=metric.title,
        arrow=metric.arrow,
        unit=metric.unit,
        model=", ".join(models(rows)),
        commit=f"{commits([dict(row) for row, _ in pairs])} → {commits([dict(row) for row in rows])}",
        settings={"interval": HOW},
        to_full=difference,
        **own,
    )
    bounds = difference["interval"]
    within = "" if bounds is None else f" [{bounds[0]:+.3g}, {bounds[1]:+.3g}]"
    change = f"{difference['value']:+.3g}{within} {metric.unit}"
    return row, f"{place[0]}, {place[1]}, {metric.title}: {change}: {verdict(bounds, metric.arrow)}."


def models(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the models by the beginning of their fingerprint."""
    return sorted({str(row.get("model", "?"))[:12] for row in rows})


def verdict(bounds: Sequence[float] | None, arrow: str) -> str:
    """Say in a word what an interval of a difference tells."""
    if bounds is None:
        return "one question tells nothing"
    if bounds[0] <= 0 <= bounds[1]:
        return "within noise"
    return "better" if (bounds[0] > 0) == (arrow == "↑") else "worse"
