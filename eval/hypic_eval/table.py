"""Markdown tables, made from saved results."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from hypic_eval.results import ResultRow, Results

DIGITS = {"%": 1, "nats": 3, "mnats": 2, "MiB": 2, "ratio": 2, "ms": 0, "tokens": 0, "tokens/s": 0, "x": 2}
COUNTED = ("requests", "answers", "kills", "files", "lookups")
DIGITS |= {"requests/s": 2, **dict.fromkeys(COUNTED, 0)}
SUFFIX = {
    "%": "",
    "nats": "",
    "ms": " ms",
    "tokens": "",
    "tokens/s": " tokens/s",
    "x": "x",
    "ratio": "",
    "relative error": "",
}
SUFFIX |= {"mnats": " mnats", "MiB": " MiB", "requests/s": " requests/s", "launches": ""}
SUFFIX |= dict.fromkeys(COUNTED, "")


def markdown(results: Results) -> str:
    """Write all of a results file: a table of modes by metrics for each task and data set, then details, notes."""
    groups = [list(rows) for _, rows in groupby(results.rows, key=lambda row: (row.task, row.data))]
    blocks = [block for rows in groups for block in (heading(rows), pivot(rows))]
    if results.details:
        columns = list(results.details[0])
        blocks.append(grid(columns, ([str(detail[column]) for column in columns] for detail in results.details)))
    blocks += results.notes
    blocks.append(", ".join(f"{name} {value}" for name, value in results.machine.items() if value is not None))
    return "\n\n".join(blocks) + "\n"


def heading(rows: Sequence[ResultRow]) -> str:
    first = rows[0]
    n = max(row.n for row in rows)
    return f"### {first.data}: {first.task} v{first.version}, n={n}, {first.model}, commit {first.commit}"


def pivot(rows: Sequence[ResultRow]) -> str:
    """Lay modes down, metrics across, both in the order of the rows."""
    modes = list(dict.fromkeys(row.mode for row in rows))
    metrics = list(dict.fromkeys((row.metric, row.arrow) for row in rows))
    cells = {(row.mode, row.metric, row.arrow): cell(row) for row in rows}
    lines = ([mode, *(cells.get((mode, *metric), "–") for metric in metrics)] for mode in modes)
    return grid(["mode", *(f"{name} {arrow}".strip() for name, arrow in metrics)], lines)


def cell(row: ResultRow) -> str:
    """Write value [interval] (difference to full [interval]; goal)."""
    beside = []
    if row.to_full is not None:
        value, bounds = row.to_full["value"], row.to_full["interval"]
        beside.append(f"Δ {number(value, row.unit, '+')}{interval(bounds, row.unit, '+')}")
    if row.goal is not None:
        sign, verdict = "≥" if row.arrow == "↑" else "≤", "missed" if row.misses_goal else "met"
        beside.append(f"goal {sign} {row.goal:g}: {verdict}")
    text = number(row.value, row.unit) + SUFFIX[row.unit] + interval(row.interval, row.unit)
    return f"{text} ({'; '.join(beside)})" if beside else text


def number(value: float, unit: str, sign: str = "") -> str:
    return f"{value:{sign}.1e}" if unit == "relative error" else f"{value:{sign}.{DIGITS[unit]}f}"


def interval(bounds: Sequence[float] | None, unit: str, sign: str = "") -> str:
    return "" if bounds is None else f" [{number(bounds[0], unit, sign)}, {number(bounds[1], unit, sign)}]"


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(
        "| " + " | ".join(entry.replace("|", "\\|").replace("\n", " ") for entry in row) + " |" for row in rows
    )
