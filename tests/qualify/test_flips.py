"""hypic-qualify flips: every bit is found; and a cache that would not look is found out."""

from pathlib import Path

import pytest
from hypic_eval.table import markdown
from hypic_qualify import flips
from hypic_qualify.flips import run_flips

from hypic_rag.cache import record
from hypic_rag.cache.tiers import files


def test_every_flipped_bit_is_a_miss(tmp_path: Path) -> None:
    results = run_flips(tmp_path, 40)
    values = {(row.mode, row.metric): row.value for row in results.rows}
    assert (values["entries", "found"], values["answers", "right"], values["index", "wrong"]) == (100, 100, 0)
    assert not results.missed_goals and "| entries | 100.0" in markdown(results)


def test_a_cache_without_a_checksum_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, record):
        monkeypatch.setattr(module, "checksum_of", lambda data, before=0: 0)
    monkeypatch.setattr(flips, "AN_ANSWER_IN", 10**9)
    results = run_flips(tmp_path, 20, seed=1)
    assert {row.mode for row in results.missed_goals} >= {"entries"}
    assert results.samples["unfound"]
