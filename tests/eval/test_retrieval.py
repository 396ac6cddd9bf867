"""The retrieval evaluation: its pool, its figures, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest
from hypic_eval.results import Results
from hypic_eval.retrieval import read_pool, run_retrieval

from hypic_rag.errors import BadInput
from hypic_rag.rag import SearchOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "retrieval"))
from fake_engine import FakeEmbedder, FakeEngine

ROWS = [
    {"question": "who built ships in Vardal?", "docs": [
        {"title": "Vardal", "text": "Ole built ships here", "gold": True},
        {"title": "Lund", "text": "there is a fair", "gold": False},
    ]},
    {"question": "when is the fair of Lund?", "docs": [
        {"title": "Lund", "text": "there is a fair", "gold": True},
        {"title": "Oslo", "text": "a town with a mill"},
    ]},
]  # fmt: skip


class Blind(FakeEmbedder):
    """Finds "Oslo" nearest to everything."""

    def embed(self, texts, on_progress=None):
        vectors = super().embed(["oslo" if "Oslo" in text or "?" in text else "rest" for text in texts])
        return vectors


def file_of(tmp_path, rows):
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_equal_paragraphs_are_one_and_a_limit_is_of_questions(tmp_path):
    pool = read_pool(file_of(tmp_path, ROWS))
    assert [title for title, _ in pool.paragraphs] == ["Vardal", "Lund", "Oslo"]
    assert pool.gold == (frozenset({0}), frozenset({1}))
    assert len(read_pool(file_of(tmp_path, ROWS), 1).paragraphs) == 3


def test_figures_are_of_what_the_product_finds(tmp_path):
    options = [SearchOptions(method, -1.0) for method in ("dense", "lexical", "hybrid")]
    file, vectors = file_of(tmp_path, ROWS), tmp_path / "vectors"
    results = run_retrieval(FakeEngine(), Blind(), [file], options, vectors)
    value = {(row.mode, row.metric): row for row in results.rows}
    assert value["lexical", "MRR@10"].value == 100 and value["lexical", "recall@2"].value == 100
    assert value["dense", "MRR@10"].value < 60
    assert value["lexical", "MRR@10"].to_full["value"] == pytest.approx(100 - value["dense", "MRR@10"].value)
    assert value["dense", "MRR@10"].to_full is None
    assert value["hybrid", "time a question"].goal == 30 and value["hybrid", "time a question"].value > 0
    assert len(list(vectors.iterdir())) == 1
    embedder = Blind()
    again = run_retrieval(FakeEngine(), embedder, [file], options, vectors)
    assert not any("Ole built" in text for text in embedder.embedded)
    assert [row.value for row in again.rows if row.unit == "%"] == [
        row.value for row in results.rows if row.unit == "%"
    ]
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").rows == results.rows


BAD = {
    "no docs": ({"question": "q"}, r"line 1: not a row"),
    "no gold": ({"question": "q", "docs": [{"title": "", "text": "t"}]}, r'none of its docs has "gold"'),
}


@pytest.mark.parametrize("row, told", BAD.values(), ids=BAD)
def test_rows_without_what_is_needed_are_told(tmp_path, row, told):
    with pytest.raises(BadInput, match=told):
        read_pool(file_of(tmp_path, [row]))
