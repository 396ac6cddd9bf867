"""Rows on disk survive a kill, and are found again by every setting."""

import json
from pathlib import Path

import pytest
from hypic_eval.rows import RowFile, row_key

from hypic_rag.errors import BadInput


def test_rows_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    RowFile(path).append("a", {"f1": 1.0, "answer": "line\nbreak \u2028 end"})
    again = RowFile(path)
    assert again.get("a") == {"key": "a", "f1": 1.0, "answer": "line\nbreak \u2028 end"}
    assert again.get("b") is None


def test_a_line_cut_off_by_a_kill_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = RowFile(path)
    rows.append("a", {"f1": 1.0})
    rows.append("b", {"f1": 0.5})
    path.write_bytes(path.read_bytes()[:-4])
    cut = RowFile(path)
    assert (set(cut.rows), cut.n_unreadable) == ({"a"}, 1)
    cut.append("b", {"f1": 0.5})
    assert set(RowFile(path).rows) == {"a", "b"}


def test_the_first_row_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    one, two = RowFile(path), RowFile(path)
    one.append("a", {"by": 1})
    two.append("a", {"by": 2})
    row = RowFile(path).get("a")
    assert row is not None and row["by"] == 1


@pytest.mark.parametrize("line", ["[1]", "3", '{"f1": 1}', "\x00\x01", '"key"'])
def test_strange_lines_are_skipped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n" + json.dumps({"key": "a"}) + "\n")
    assert set(RowFile(path).rows) == {"a"}


def test_without_a_path_rows_stay_in_memory() -> None:
    rows = RowFile(None)
    rows.append("a", {"f1": 1.0})
    assert rows.get("a") is not None


def test_a_folder_cannot_be_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--rows"):
        RowFile(tmp_path)


def test_a_key_depends_on_every_setting_but_not_on_their_order() -> None:
    settings = {"mode": "full", "seam": 8, "answers": ["é"]}
    assert row_key(settings) == row_key(dict(reversed(settings.items())))
    for name in settings:
        assert row_key({**settings, name: "other"}) != row_key(settings)
