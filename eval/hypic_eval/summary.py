"""From the measured rows of one set to its figures: a mean a mode and metric, differences to full, PGR, times."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hypic_eval.gap_recovered import gap_recovered
from hypic_eval.intervals import HOW, Estimate, mean, median, paired_difference
from hypic_eval.measure import MeasuredQuestion
from hypic_eval.metrics import METRICS, Metric
from hypic_eval.modes import FULL, NONE, Mode
from hypic_eval.results import ResultRow, commits

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

ByMode = Mapping[Mode, list[dict[str, Any]]]


def summarise(
    engine: "SegmentEngine", data: str, asked: Sequence[MeasuredQuestion], measured: ByMode
) -> tuple[list[ResultRow], list[str]]:
    """Make a result row for each mode and metric of one task, and notes on what could not be told."""
    task = asked[0].task
    settings = {
        "fingerprint": engine.fingerprint,
        "prompt_format": engine.format.version,
        "context_length": engine.context_length,
        "max_new_tokens": task.max_new_tokens,
        "interval": HOW,
    }
    if (searching := asked[0].about.get("searching")) is not None:
        settings["searching"] = searching
    result: list[ResultRow] = []
    notes: list[str] = []
    for mode, rows in measured.items():
        known: dict[str, Any] = {
            "task": task.name,
            "version": task.version,
            "data": data,
            "n": len(rows),
            "mode": str(mode),
            "model": engine.model_name,
            "commit": commits(rows),
            "settings": {**settings, "dates": dates(rows), "policy": rows[0]["policy"], "machines": machines(rows)},
        }
        for metric in (METRICS[name] for name in (*task.scores, "nll", "kl")):
            difference = None if metric.name == "kl" else difference_to_full(metric, mode, measured)
            own = metric.shown(mean(column(rows, metric)))
            result.append(
                ResultRow(metric=metric.title, arrow=metric.arrow, unit=metric.unit, to_full=difference, **own, **known)
            )
        for metric in (METRICS[name] for name in (next(iter(task.scores)), "nll")):
            share = share_kept(metric, mode, measured)
            if isinstance(share, Estimate):
                bounds = share.interval
                about = (f"PGR ({metric.title})", "↑", "ratio")
                result.append(result_row(about, share.value, bounds, known))
            elif share and (note := f"{data}: no PGR of {metric.title}: {share}.") not in notes:
                notes.append(note)
        time = median(column(rows, "ttft_ms"))
        result.append(result_row(("time to first token", "↓", "ms"), time.value, time.interval, known))
    return result, notes


def result_row(
    about: tuple[str, str, str], value: float, bounds: tuple[float, float] | None, known: Mapping[str, Any]
) -> ResultRow:
    """Make a row of a metric, its arrow and its unit."""
    metric, arrow, unit = about
    return ResultRow(metric=metric, arrow=arrow, unit=unit, value=value, interval=bounds, **known)


def column(rows: Sequence[Mapping[str, Any]], metric: Metric | str) -> list[float]:
    """Pick one figure of every row."""
    name = metric if isinstance(metric, str) else metric.name
    return [float(row[name]) for row in rows]


def difference_to_full(metric: Metric, mode: Mode, measured: ByMode) -> dict[str, Any] | None:
    """Return the paired difference to full recompute; None for that itself, and where it was not measured."""
    if mode == FULL or FULL not in measured:
        return None
    return metric.shown(paired_difference(column(measured[mode], metric), column(measured[FULL], metric)))


def share_kept(metric: Metric, mode: Mode, measured: ByMode) -> Estimate | str | None:
    """Return PGR, or why there is none; None for its own ends, and where one was not measured."""
    if mode in (FULL, NONE) or FULL not in measured or NONE not in measured:
        return None
    values, none, full = (column(measured[one], metric) for one in (mode, NONE, FULL))
    return gap_recovered(values, none, full, metric.arrow)


def dates(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tell when the first and the last row were measured."""
    days = sorted(row["date"] for row in rows)
    return [days[0], days[-1]]


def machines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tell where rows were measured; times of several do not belong in one figure."""
    return sorted({row["machine"] for row in rows})


def gold_note(data: str, asked: Sequence[MeasuredQuestion]) -> list[str]:
    """Tell, where documents were retrieved, how many of those with the answer were found."""
    shares = [share for one in asked if (share := one.about.get("gold_found")) is not None]
    if not shares:
        return []
    found = mean(shares)
    within = "" if found.interval is None else f" [{100 * found.interval[0]:.1f}, {100 * found.interval[1]:.1f}]"
    n_refused = sum(bool(one.refusal) for one in asked)
    refused = f" For {n_refused} questions nothing relevant was found, and that was the answer." if n_refused else ""
    return [
        f"{data}: of the documents with the answer, {100 * found.value:.1f}%{within} were among the "
        f"{asked[0].about['retrieved']} retrieved (n={len(shares)}).{refused}"
    ]


def dropped_documents(data: str, asked: Sequence[MeasuredQuestion], context_length: int) -> str:
    n_documents = sum(len(one.question.documents) for one in asked)
    n_dropped = sum(one.n_dropped for one in asked)
    n_questions = sum(one.n_dropped > 0 for one in asked)
    n_bare = sum(not one.prompt.documents for one in asked)
    text = f"{data}: {n_dropped} of {n_documents} documents did not fit the context of {context_length} tokens"
    if n_dropped:
        text += f" and were dropped whole from the end, in {n_questions} of {len(asked)} questions"
    if n_bare:
        text += f"; {n_bare} questions were asked without any document"
    return text + "."
