"""hypic-qualify overhead: against a real server over a tiny engine, and what its goals are of."""

import sys
from pathlib import Path

import pytest
from hypic_eval.table import markdown
from hypic_eval.task import read_questions
from hypic_qualify.overhead import NotWarm, Round, measure_overhead, summarise

TESTS = Path(__file__).parents[1]
sys.path += [
    str(TESTS / "apps"),
    str(TESTS / "apps" / "server"),
    str(TESTS / "engine"),
]  # collecting, tiny_server, tiny


def test_a_server_and_an_engine_take_turns(few: Path, tmp_path: Path) -> None:
    import tiny
    from collecting import make_service
    from tiny_server import running

    service, engine = make_service(tmp_path / "server"), tiny.engine("qwen3_5_text")
    _, questions = read_questions(few, limit=1)
    with running(service) as server:
        rounds = measure_overhead(server.url, engine, questions, 4)
        service.engine.cache.host.budget = 0
        service.engine.cache.host.clear()
        with pytest.raises(NotWarm, match="HYPIC_HOST_MEMORY"):
            measure_overhead(server.url, engine, questions, 1)
    service.engine.cache.close()
    assert len(rounds) == 4
    assert all(0 < one.engine < one.client and one.alone > 0 for one in rounds)


def test_the_goal_is_of_the_difference_to_its_own_engine() -> None:
    quick = summarise("m", "few", [Round(104.0, 100.0, 101.0), Round(205.0, 200.0, 201.0), Round(106.0, 100.0, 102.0)])
    assert not quick.missed_goals and "| beyond its own engine | 5 ms" in markdown(quick)
    slow = summarise("m", "few", [Round(106.0, 100.0, 105.0)] * 3)
    assert [row.mode for row in slow.missed_goals] == ["beyond its own engine"]
