"""The figures of a report: each is drawn from result rows alone, and says in words what it shows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_eval.results import ResultRow
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TTFT = "time to first token"
PGR = "PGR ("
NO_NAME = re.compile(r"[^\w.-]+")  # what of a data set's name a file's has not
WIDTH_INCHES, HEIGHT_INCHES, DPI = 7.0, 3.8, 150


@dataclass(frozen=True)
class Plot:
    """A figure before it is drawn. name: of its files, without ending. explained: what one sees, for the page."""

    name: str
    title: str
    explained: str
    draw: "Callable[[Axes], None]"


def plots_of(rows: Sequence[ResultRow]) -> list[Plot]:
    """Plan the figures of one data set: the first score by mode, PGR by mode, score against time, and a sweep's
    curves. What has no rows has no figure."""
    data, first = rows[0].data, rows[0].metric
    name = NO_NAME.sub("-", data)
    if rows[0].task == "replay":
        return replay_plots(name, rows)
    at_rest = [row for row in rows if "sweep" not in row.settings]
    scores = [row for row in at_rest if row.metric == first]
    shares = [row for row in at_rest if row.metric.startswith(PGR)]
    times = {row.mode: row for row in at_rest if row.metric == TTFT}
    plots = []
    if scores:
        plots.append(
            Plot(
                f"{name}-score",
                f"{data}: {first} by mode",
                f"{first} of each mode, the mean over {scores[0].n} questions; the line is its 95% interval. Intervals "
                "that overlap may still differ beyond noise, as modes answer the same questions: the table's Δ, which "
                "is paired, decides.",
                lambda ax: bars(ax, scores),
            )
        )
    if shares:
        plots.append(
            Plot(
                f"{name}-pgr",
                f"{data}: share of the gap that is kept",
                "PGR = (score - none) / (full - none): 1 is full recompute, 0 is no documents at all. The line is the "
                "95% interval, over questions with all three figures of each.",
                lambda ax: bars(ax, shares, (0.0, 1.0)),
            )
        )
    if scores and len(times) > 1:
        plots.append(
            Plot(
                f"{name}-time",
                f"{data}: {first} against time to the first token",
                "Up and to the left is better. Time is the median over the questions, from a warm cache, its line the "
                "quartiles; the score's line is its 95% interval. A mode beside none that has nothing above it on its "
                "left is worth its time.",
                lambda ax: scatter(ax, scores, times),
            )
        )
    for axis in dict.fromkeys(row.settings["sweep"]["axis"] for row in rows if "sweep" in row.settings):
        swept = [row for row in rows if row.settings.get("sweep", {}).get("axis") == axis and row.metric == first]
        plots.append(
            Plot(
                f"{name}-{axis}",
                f"{data}: {first} by {axis}",
                f"{first} of each mode where {AXES.get(axis, axis)}; bands are 95% intervals. The questions are the "
                "same at every point.",
                lambda ax, swept=swept: curves(ax, swept),  # type: ignore[misc]
            )
        )
        timed = [row for row in rows if row.settings.get("sweep", {}).get("axis") == axis and row.metric == TTFT]
        if timed and axis in TIMED:
            plots.append(
                Plot(
                    f"{name}-{axis}-time",
                    f"{data}: time to the first token by {axis}",
                    f"Time to the first token of each mode, from a warm cache, where {AXES[axis]}; medians, and bands "
                    "of quartiles.",
                    lambda ax, timed=timed: curves(ax, timed),  # type: ignore[misc]
                )
            )
    return plots


def replay_plots(name: str, rows: Sequence[ResultRow]) -> list[Plot]:
    """Plan the figures of a replayed trace: the rate that each way holds, and its times by rate."""
    data, limit_ms, q = rows[0].data, rows[0].settings["limit_ms"], rows[0].settings["percentile"]
    held = [row for row in rows if row.metric == rows[0].metric]
    plots = [
        Plot(
            f"{name}-held",
            f"{data}: {rows[0].metric}",
            "The highest rate that each way held; the line goes to the lowest that it did not hold.",
            lambda ax: bars(ax, held),
        )
    ]
    if timed := [row for row in rows if row.metric == f"first token, p{q}"]:

        def draw(ax: "Axes") -> None:
            curves(ax, timed)
            ax.axhline(limit_ms, color="0.7", linestyle=":", linewidth=1)
            ax.set_xscale("log")
            ax.set_yscale("log")

        plots.append(
            Plot(
                f"{name}-rate",
                f"{data}: first token, p{q}, by rate",
                f"The time that {q}% of the requests keep, from arrival to the first token, at each rate that was "
                "tried, in requests a second. The dotted line is the limit.",
                draw,
            )
        )
    return plots


AXES = {
    "seam": "the first so many tokens of each segment are run again",
    "documents": "a prompt has so many documents, those with the answer among them",
    "size": "the same documents are cut, or put together, into segments of at most so many tokens",
    "order": "the documents are shuffled; 0 is the data set's order, the rest show what order alone does",
    "gold": "the documents with the answer stand at that place: 0 is first, 1 last",
    "budget": "the cache has room for so many percent of all segments' bytes",
}
"""Axis of a sweep -> what is varied, as in "F1 where …"."""
TIMED = ("documents", "size")
"""Axes along which the time to the first token is drawn, too."""


def bars(ax: "Axes", rows: Sequence[ResultRow], marks: Sequence[float] = ()) -> None:
    """Draw a point and an interval a row, one below the other, the first on top."""
    labels = [f"{row.mode}: {row.metric}" if len({row.metric for row in rows}) > 1 else row.mode for row in rows]
    for y, row in enumerate(rows):
        ax.errorbar(row.value, y, xerr=spread(row), fmt="o", capsize=3, color="C0")
    for mark in marks:
        ax.axvline(mark, color="0.7", linestyle=":", linewidth=1)
    ax.set_yticks(range(len(rows)), labels)
    ax.invert_yaxis()
    ax.set_xlabel(label(rows[0], is_share=rows[0].metric.startswith(PGR)))


def scatter(ax: "Axes", scores: Sequence[ResultRow], times: dict[str, ResultRow]) -> None:
    """Draw a point a mode, with both intervals, and a legend: modes that are near each other would write over names."""
    for i, row in enumerate(row for row in scores if row.mode in times):
        time = times[row.mode]
        bounds = {"xerr": spread(time), "yerr": spread(row)}
        ax.errorbar(time.value, row.value, **bounds, fmt="o", capsize=2, color=f"C{i % 10}", label=row.mode)
    ax.set_xscale("log")
    ax.set_xlabel("time to first token, ms")
    ax.set_ylabel(label(scores[0]))
    ax.legend(fontsize=8)


def curves(ax: "Axes", rows: Sequence[ResultRow]) -> None:
    """Draw a line a mode along the axis of a sweep; a row without a place on it is a level line."""
    for i, mode in enumerate(dict.fromkeys(row.settings["sweep"]["mode"] for row in rows)):
        own = [row for row in rows if row.settings["sweep"]["mode"] == mode]
        color = f"C{i % 10}"
        if own[0].settings["sweep"]["x"] is None:
            ax.axhline(own[0].value, color=color, linestyle="--", label=mode)
            continue
        own.sort(key=lambda row: float(row.settings["sweep"]["x"]))
        x = [float(row.settings["sweep"]["x"]) for row in own]
        ax.plot(x, [row.value for row in own], "o-", color=color, label=mode)
        if all(row.interval for row in own):
            low, high = zip(*(row.interval or () for row in own), strict=True)
            ax.fill_between(x, low, high, color=color, alpha=0.15)
    ax.set_xlabel(rows[0].settings["sweep"]["axis"])
    ax.set_ylabel(label(rows[0]))
    ax.legend(fontsize=8)


def spread(row: ResultRow) -> Any:
    """Return how far an interval goes below and above its value, as matplotlib wants it."""
    if row.interval is None:
        return None
    return [[max(0.0, row.value - row.interval[0])], [max(0.0, row.interval[1] - row.value)]]


def label(row: ResultRow, is_share: bool = False) -> str:
    """Name an axis with its unit and its good way."""
    return "PGR →" if is_share else f"{row.metric}, {row.unit} {row.arrow}"


def save(plot: Plot, folder: Path) -> None:
    """Draw a figure into ``folder`` as NAME.svg and NAME.png; equal rows give equal SVG bytes."""
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("plots need matplotlib: pip install 'hypic-rag[eval]'") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "hypic", "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        FigureCanvasAgg(figure)
        plot.draw(figure.add_subplot())
        figure.suptitle(plot.title, fontsize=10)
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{plot.name}.png", dpi=DPI)
