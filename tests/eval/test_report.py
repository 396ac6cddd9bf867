"""The report: a page made of the saved rows alone, with figures that hold what the rows say."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.cli import main
from hypic_eval.modes import parse_modes
from hypic_eval.plots import bars, curves, plots_of, scatter
from hypic_eval.quality import run_quality
from hypic_eval.report import write_report
from hypic_eval.results import ResultRow, Results
from hypic_eval.rows import RowFile
from hypic_eval.sweep import run_sweep

from hypic_rag.errors import BadInput

Make = Callable[..., Any]


def row(mode: str, value: float, metric: str = "F1", unit: str = "%", **changes: Any) -> ResultRow:
    about: dict[str, Any] = {"task": "qa", "version": 1, "data": "few", "n": 4, "model": "m", "commit": "c"}
    bounds = (value - 2, value + 1)
    return ResultRow(
        mode=mode, metric=metric, arrow="↑", unit=unit, value=value, interval=bounds, **{**about, **changes}
    )


ROWS = [
    row("full", 30.0), row("full", 900.0, "time to first token", "ms"), row("a<b", 20.0),
    row("a<b", 0.6, "PGR (F1)", "ratio"), row("a<b", 90.0, "time to first token", "ms"),
]  # fmt: skip


def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def test_points_and_intervals_are_those_of_the_rows() -> None:
    ax = axes()
    bars(ax, [ROWS[0], ROWS[2]])
    points = [tuple(line.get_xydata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert points == [(30.0, 0), (20.0, 1)]
    spans = [tuple(map(tuple, part)) for lines in ax.collections for part in lines.get_segments()]
    assert spans == [((28.0, 0.0), (31.0, 0.0)), ((18.0, 1.0), (21.0, 1.0))]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["full", "a<b"]


def test_score_against_time() -> None:
    ax = axes()
    scatter(ax, [ROWS[0], ROWS[2]], {"full": ROWS[1], "a<b": ROWS[4]})
    points, names = ax.get_legend_handles_labels()
    drawn = {(name, *map(float, point[0].get_xydata()[0])) for name, point in zip(names, points, strict=True)}
    assert drawn == {("full", 900.0, 30.0), ("a<b", 90.0, 20.0)}


def test_curves_run_along_the_axis_whatever_the_order_of_rows() -> None:
    def at(x: float | None, mode: str, value: float) -> ResultRow:
        return row(f"{mode} {x}", value, settings={"sweep": {"axis": "seam", "x": x, "mode": mode}})

    ax = axes()
    curves(ax, [at(None, "full", 30.0), at(8, "hypic", 25.0), at(0, "hypic", 20.0), at(32, "hypic", 28.0)])
    level, curve = ax.lines
    assert list(level.get_ydata()) == [30.0, 30.0] and level.get_linestyle() == "--"
    assert [tuple(point) for point in curve.get_xydata()] == [(0, 20), (8, 25), (32, 28)]


def test_what_has_no_rows_has_no_figure() -> None:
    assert [plot.name for plot in plots_of(ROWS)] == ["few-score", "few-pgr", "few-time"]
    assert [plot.name for plot in plots_of([ROWS[0]])] == ["few-score"]


def test_the_page_has_every_figure_and_value(tmp_path: Path) -> None:
    Results("quality", {"cpu": "some"}, ROWS, notes=["few: a <note>."]).save(tmp_path / "r.json")
    page = write_report([tmp_path / "r.json"], tmp_path / "out").read_text("utf-8")
    assert "<td>20.0 [18.0, 21.0]</td><td>90 ms [88, 91]</td><td>0.60 [-1.40, 1.60]</td>" in page
    assert "a&lt;b" in page and "few: a &lt;note&gt;." in page and "a<b" not in page and "cpu some" in page
    pictures = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(pictures) == 6
    assert all((tmp_path / "out" / name).stat().st_size > 1000 for name in pictures)
    svg = (tmp_path / "out" / "few-score.svg").read_text("utf-8")
    assert "few: F1 by mode" in svg and "a&lt;b" in svg
    write_report([tmp_path / "r.json"], tmp_path / "again")
    assert (tmp_path / "again" / "few-score.svg").read_text("utf-8") == svg


def test_runs_and_sweeps_of_a_set_on_one_page(
    make_engine: Make, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_quality(make_engine(), [few], parse_modes("none,full,hypic"), RowFile(None), limit=3).save(tmp_path / "q.json")
    for axis, values in (("seam", (0, 8)), ("documents", (2, 4))):
        modes = parse_modes("full,hypic")
        run_sweep(make_engine(), few, axis, values, modes, RowFile(None), 3).save(tmp_path / f"{axis}.json")
    files = [str(tmp_path / name) for name in ("q.json", "seam.json", "documents.json")]
    monkeypatch.setattr(sys, "argv", ["hypic-eval", "report", *files, "--out", str(tmp_path / "page")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out.strip() == str(tmp_path / "page" / "index.html")
    drawn = {path.name for path in (tmp_path / "page").glob("*.svg")}
    assert drawn == {
        f"hotpotqa_few-{name}.svg" for name in ("score", "pgr", "time", "seam", "documents", "documents-time")
    }


def test_two_runs_of_a_set_are_compared_instead(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Results("quality", {}, ROWS).save(tmp_path / f"{name}.json")
    with pytest.raises(BadInput, match=r"b\.json measured few of m, as a\.json did: hypic-eval compare"):
        write_report([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "out")


def test_other_results_are_refused(tmp_path: Path) -> None:
    Results("ttft", {}, []).save(tmp_path / "r.json")
    with pytest.raises(BadInput, match="results of ttft; a report is made of quality, sweep and replay"):
        write_report([tmp_path / "r.json"], tmp_path / "out")
