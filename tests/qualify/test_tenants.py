"""hypic-qualify tenants: against a real server over a tiny engine, and against one that has no tenants."""

import sys
from pathlib import Path

import pytest
from hypic_eval.rows import RowFile
from hypic_eval.table import markdown
from hypic_qualify.homes import new_key, temporary_home
from hypic_qualify.tenants import Times, measure_tenants, summarise

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "apps"), str(TESTS / "apps" / "server")]  # collecting, tiny_server


@pytest.mark.parametrize("tenants", [("ours", "theirs"), ("ours", "ours")], ids=["two tenants", "one in truth"])
def test_a_hit_across_is_noted(tenants: tuple[str, str], tmp_path: Path) -> None:
    from collecting import make_service
    from tiny_server import running

    service = make_service(tmp_path / "server")
    first, second = (service.keys.add(tenant)[1] for tenant in tenants)
    with running(service) as server:
        rows = RowFile(tmp_path / "rows.jsonl")
        times = measure_tenants(server.url, (first, second), 10, row_file=rows)
    service.engine.cache.close()
    assert len(times.known) == len(times.unknown) == len(times.hit) == 5
    assert bool(times.odd) == (tenants[0] == tenants[1])
    again = measure_tenants("http://127.0.0.1:1", (first, second), 10, row_file=RowFile(rows.path))
    assert again == times


def pairs(known: float) -> Times:
    noise = [0.1 * (i % 7 - 3) for i in range(60)]
    return Times([known + x for x in noise], [100 - x for x in noise], [50.0] * 60)


@pytest.mark.parametrize("known, equivalent", [(100.0, True), (92.0, False)])
def test_the_verdict(known: float, equivalent: bool) -> None:
    results, verdict = summarise("m", pairs(known))
    assert verdict is not None and verdict.equivalent == equivalent
    assert verdict.margin == pytest.approx(5.0, abs=0.1)
    assert bool(results.missed_goals) != equivalent
    assert "known to nobody" in markdown(results)


def test_a_hit_that_is_no_quicker_has_no_verdict() -> None:
    assert summarise("m", Times([1.0] * 10, [1.0] * 10, [2.0] * 10))[1] is None


def test_a_home_of_its_own_has_the_models_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path))
    (tmp_path / "models" / "one").mkdir(parents=True)
    with temporary_home() as home:
        assert (home / "models" / "one").is_dir() and home.parent == tmp_path
        assert new_key(home, "ours") != new_key(home, "theirs")
    assert (tmp_path / "models" / "one").is_dir() and not home.exists()
