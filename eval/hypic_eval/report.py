"""A report: one static HTML page with the tables of saved results, and figures beside it that it explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment

from hypic_eval import plots
from hypic_eval.results import ResultRow, Results
from hypic_eval.table import cell
from hypic_rag.atomic_write import replacing
from hypic_rag.errors import BadInput

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What answers are worth</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.85rem }
th, td { border-bottom: 1px solid #ddd; padding: 0.3rem 0.6rem; text-align: left; white-space: nowrap }
figure { margin: 1.5rem 0 } img { max-width: 100% } figcaption, .about { color: #555; font-size: 0.9rem }
</style>
<h1>What answers are worth</h1>
<p>Every figure is a mean over questions unless it says otherwise. [a, b] is its 95% interval, a bootstrap over
questions; of times it is the quartiles of a median. Δ is the difference to full recompute over the same questions,
paired: it counts where its interval does not have 0 in it. ↑ and ↓ are the good way.</p>
{% for section in sections %}
<h2 id="{{ section.anchor }}">{{ section.title }}</h2>
<p class="about">{{ section.about }}</p>
<table>
<tr><th>mode</th>{% for metric in section.metrics %}<th>{{ metric }}</th>{% endfor %}</tr>
{% for mode, cells in section.lines %}<tr><th>{{ mode }}</th>{% for one in cells %}<td>{{ one }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for plot in section.plots %}
<figure id="{{ plot.name }}">
<img src="{{ plot.name|urlencode }}.svg" alt="{{ plot.title }}">
<figcaption>{{ plot.explained }} (<a href="{{ plot.name|urlencode }}.png">PNG</a>)</figcaption>
</figure>
{% endfor %}{% endfor %}
{% if notes %}<h2>Notes</h2>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
<p class="about">Measured on: {{ machines|join("; ") }}.</p>
</html>
"""


@dataclass(frozen=True)
class Section:
    """One data set of one task and model, as the page shows it."""

    anchor: str
    title: str
    about: str
    metrics: list[str]
    lines: list[tuple[str, list[str]]]
    plots: list[plots.Plot]


def write_report(files: Sequence[Path], out: Path) -> Path:
    """Write ``out``/index.html and its figures, from files of results, and return the page's path.

    Raises BadInput for files of other commands than quality, sweep and replay, or where nothing can be written.
    """
    loaded = [Results.load(path) for path in files]
    for path, results in zip(files, loaded, strict=True):
        if results.kind not in ("quality", "sweep", "replay"):
            raise BadInput(f"{path} holds results of {results.kind}; a report is made of quality, sweep and replay")
    refuse_two_of_a_set(files, loaded)
    rows = [row for results in loaded for row in results.rows]
    sections = [section(list(some)) for _, some in groupby(sorted(rows, key=group), key=group)]
    page = (
        Environment(autoescape=True, trim_blocks=True)
        .from_string(PAGE)
        .render(
            sections=sections,
            notes=list(dict.fromkeys(note for results in loaded for note in results.notes)),
            machines=list(dict.fromkeys(described(results.machine) for results in loaded)),
        )
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for one in sections:
            for plot in one.plots:
                plots.save(plot, out)
        with replacing(out / "index.html") as file:
            file.write(page.encode())
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error}. Name another folder with --out") from error
    return out / "index.html"


def refuse_two_of_a_set(files: Sequence[Path], loaded: Sequence[Results]) -> None:
    """Raise BadInput where two runs, sweeps apart, would share a table."""
    seen: dict[tuple[str, str, str], Path] = {}
    for path, results in zip(files, loaded, strict=True):
        for one in {group(row) for row in results.rows if results.kind != "sweep"}:
            if seen.setdefault(one, path) is not path:
                raise BadInput(
                    f"{path} measured {one[0]} of {one[2]}, as {seen[one].name} did: hypic-eval compare tells what "
                    "changed; make a report of each"
                )


def group(row: ResultRow) -> tuple[str, str, str]:
    return row.data, row.task, row.model


def section(rows: Sequence[ResultRow]) -> Section:
    """Gather a data set's table and figures."""
    first = rows[0]
    metrics = list(dict.fromkeys((row.metric, row.arrow) for row in rows))
    cells = {(row.mode, row.metric): cell(row) for row in rows}
    modes = dict.fromkeys(row.mode for row in rows)
    days = sorted({day[:10] for row in rows for day in row.settings.get("dates", ())})
    when = f", {days[0]} to {days[-1]}" if len(days) > 1 else f", {days[0]}" if days else ""
    n = sorted({row.n for row in rows})
    return Section(
        "-".join(group(first)).replace(" ", "-"),
        f"{first.data} ({first.model})",
        f"Task {first.task} version {first.version}, n={'–'.join(map(str, dict.fromkeys((n[0], n[-1]))))}, model "
        f"{first.model}, commit {first.commit}{when}.",
        [f"{name} {arrow}" for name, arrow in metrics],
        [(mode, [cells.get((mode, name), "–") for name, _ in metrics]) for mode in modes],
        plots.plots_of(rows),
    )


def described(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None)
