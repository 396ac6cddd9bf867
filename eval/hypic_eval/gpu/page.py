"""The table of a saved GPU run: figure, goal, value, floor, n, and how each was measured."""

from hypic_eval.results import ResultRow, Results
from hypic_eval.table import SUFFIX, grid

DIGITS = {"launches": 0, "%": 1}
TOP, NAME = 15, 90
"""How many kernels are shown, and how much of their names: templates go on for lines."""
COLUMNS = ("figure", "goal", "value", "floor", "n", "how it was measured")


def markdown(results: Results) -> str:
    blocks = [grid(COLUMNS, (line(row) for row in results.rows))]
    if results.details:
        columns = list(results.details[0])
        blocks.append(grid(columns, ([str(detail[column]) for column in columns] for detail in results.details)))
    if kernels := results.samples.get("kernels"):
        top = ([kernel["kernel"][:NAME], str(kernel["n"]), f"{kernel['ms']:.3f}"] for kernel in kernels[:TOP])
        blocks.append(grid(("kernel of a warm pass", "n", "ms in all"), top))
    commits = ", ".join(sorted({row.commit for row in results.rows}))
    blocks += results.notes
    blocks.append("Values are medians with quartiles. Floor: what must be read once, at the bandwidth measured.")
    machine = {**results.machine, "commit": commits}
    blocks.append(", ".join(f"{name} {value}" for name, value in machine.items() if value))
    return "\n\n".join(blocks) + "\n"


def line(row: ResultRow) -> list[str]:
    figure = ": ".join(text for text in (f"{row.mode}, {row.metric}", row.data) if text)
    floor = row.settings["floor"]
    value = number(row.value, row.unit)
    if row.interval is not None:
        value += f" [{bare(row.interval[0], row.unit)}, {bare(row.interval[1], row.unit)}]"
    return [
        figure,
        goal(row),
        value,
        "" if floor is None else number(floor, row.unit),
        str(row.n),
        row.settings["how"],
    ]


def goal(row: ResultRow) -> str:
    void = f"does not count: {row.settings['void']}" if row.settings["void"] else ""
    if row.goal is None:
        return void
    verdict = void or ("missed" if row.misses_goal else "met")
    return f"{'≥' if row.arrow == '↑' else '≤'} {row.goal:g}: {verdict}"


def number(value: float, unit: str) -> str:
    suffix = SUFFIX[unit]
    return bare(value, unit) + ("%" if unit == "%" else suffix)


def bare(value: float, unit: str) -> str:
    return f"{value:,.{DIGITS.get(unit, 2)}f}"
