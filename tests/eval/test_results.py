"""Results are saved whole, read back, and shown as a table made from the file alone."""

import json
from pathlib import Path

import pytest
from hypic_eval.results import ResultRow, Results
from hypic_eval.table import markdown

from hypic_rag.errors import BadInput


def row(mode: str, value: float, **changes: object) -> ResultRow:
    fields: dict[str, object] = {
        "task": "qa",
        "version": 1,
        "data": "few",
        "n": 4,
        "mode": mode,
        "metric": "F1",
        "arrow": "↑",
        "unit": "%",
        "value": value,
        "interval": (value - 1, value + 1),
        "model": "m",
        "commit": "c0ffee",
    }
    return ResultRow(**{**fields, **changes})  # type: ignore[arg-type]


RESULTS = Results(
    "quality",
    {"cpu": "some", "cores": 2, "accelerator": None},
    [
        row("full", 32.64),
        row("full", 0.0, metric="KL", arrow="↓", unit="nats", interval=None),
        row("hypic:w=8", 28.2, to_full={"value": -4.44, "interval": (-6.0, 0.5)}, goal=30.0),
        row("warm", 123.4, data="8 segments", metric="time", arrow="↓", unit="ms", n=3, goal=150.0),
    ],
    notes=["few: 0 of 40 documents were dropped."],
    details=[{"question": "1", "answer": "a | b\nc"}],
)

TABLE = """\
### few: qa v1, n=4, m, commit c0ffee

| mode | F1 ↑ | KL ↓ |
| --- | --- | --- |
| full | 32.6 [31.6, 33.6] | 0.000 |
| hypic:w=8 | 28.2 [27.2, 29.2] (Δ -4.4 [-6.0, +0.5]; goal ≥ 30: missed) | – |

### 8 segments: qa v1, n=3, m, commit c0ffee

| mode | time ↓ |
| --- | --- |
| warm | 123 ms [122, 124] (goal ≤ 150: met) |

| question | answer |
| --- | --- |
| 1 | a \\| b c |

few: 0 of 40 documents were dropped.

cpu some, cores 2
"""


def test_a_table_is_made_from_the_file(tmp_path: Path) -> None:
    RESULTS.save(tmp_path / "results.json")
    loaded = Results.load(tmp_path / "results.json")
    assert markdown(loaded) == TABLE
    assert [row.mode for row in loaded.missed_goals] == ["hypic:w=8"]
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_a_row_holds_what_is_needed_to_read_it(tmp_path: Path) -> None:
    RESULTS.save(tmp_path / "results.json")
    saved = json.loads((tmp_path / "results.json").read_text())["rows"][0]
    wanted = {"task", "version", "n", "metric", "arrow", "value", "interval", "model", "commit", "settings"}
    assert wanted <= saved.keys()


@pytest.mark.parametrize(
    "content, told",
    [
        ("{", "holds no results"),
        ("[]", "holds no results"),
        ('{"format": "hypic-eval results", "version": 99}', "version 99"),
        ('{"format": "hypic-eval results", "version": 1, "rows": [{"task": "qa"}]}', "holds no results"),
    ],
)
def test_other_files_are_told(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(BadInput, match=told):
        Results.load(tmp_path / "results.json")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--out"):
        RESULTS.save(tmp_path / "file" / "results.json")
