"""What comes from a cache by its budget: counted by hand on small traces, and whole sweeps over a set."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypic_eval.cache_budget import LeastRecentlyUsed, entries_of, hit_shares, run_budget_sweep
from hypic_eval.cli import main
from hypic_eval.plots import plots_of
from hypic_eval.results import Results

from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.cache.tiers.host import HostTier
from hypic_rag.errors import BadInput

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny


def entry(n_tokens: int, nbytes: int) -> Entry:
    return Entry(n_tokens, 0, (LayerEntry("size", {"S": torch.empty(nbytes, dtype=torch.uint8, device="meta")}),))


TRACES = {  # budget, requests; shares of the second half: hits, tokens. Entries 0, 1, 2 have 10, 20 and 70 tokens
    "everything fits": (30, [[0], [1], [2], [0]], 1.0, 1.0),
    "nothing does": (9, [[0], [1], [2], [0]], 0.0, 0.0),
    "two of three": (20, [[0], [1], [1], [2]], 0.5, 20 / 90),
    "the oldest went": (20, [[0], [1], [2], [0]], 0.0, 0.0),
    "used again": (20, [[0], [1], [0], [2], [0], [1]], 1 / 3, 10 / 100),
}


@pytest.mark.parametrize("budget, requests, of_entries, of_tokens", TRACES.values(), ids=TRACES)
def test_least_recent_use_by_hand(budget: int, requests: Any, of_entries: float, of_tokens: float) -> None:
    entries = [entry(10, 10), entry(20, 10), entry(70, 10)]
    found = hit_shares(LeastRecentlyUsed(budget), entries, np.array(requests))
    assert found == (pytest.approx(of_tokens), pytest.approx(of_entries))


@pytest.mark.parametrize("make", [HostTier, LeastRecentlyUsed])
def test_more_room_is_never_beyond_all_and_the_ends_are_known(make: Callable[[int], Any]) -> None:
    rng = random.Random(4)
    entries = [entry(rng.randint(20, 400), rng.randint(500, 900)) for _ in range(40)]
    requests = np.array([[min(39, int(rng.expovariate(0.15))) for _ in range(3)] for _ in range(600)])
    total = sum(one.nbytes for one in entries)
    shares = [hit_shares(make(int(total * part)), entries, requests)[0] for part in (0, 0.1, 0.3, 0.6, 1)]
    assert shares[0] == 0 and shares[-1] == 1 and shares == sorted(shares)
    assert 0.1 < shares[1] < shares[2] < 1


def test_entries_are_of_the_sizes_that_the_engine_makes(few: Path) -> None:
    import tiny

    engine = tiny.engine("qwen3_5_text")
    text = "Ruby Lake is deep, and Jade Lake is not. " * 3
    [made] = entries_of(engine, [("Lakes", text), ("", "a")])  # the other is all seam
    ids = engine.format.document(text, "Lakes")
    engine.prefill([ids])
    stored: Any = engine.cache.lookup(engine.segment_key(ids))
    assert (made.n_tokens, made.nbytes) == (stored.entry.n_tokens, stored.entry.nbytes)


def test_a_sweep_and_its_curves(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tiny
    from hypic_eval.commands import sweep

    monkeypatch.setattr(sweep, "open_engine", lambda chosen: tiny.engine("qwen3_5_text"))
    out = tmp_path / "budget.json"
    given = ["sweep", str(few), "--axis", "budget", "--values", "0,30,100", "--limit", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["hypic-eval", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    rows = Results.load(out).rows
    shares = {
        (row.settings["sweep"]["mode"], row.settings["sweep"]["x"]): row for row in rows if "tokens" in row.metric
    }
    assert len(shares) == 2 * 2 * 3
    for policy in ("hypic-rag", "least recently used"):
        flat, steep = ([shares[f"{policy}, Zipf {s}", x].value for x in (0, 30, 100)] for s in ("0.7", "1"))
        assert flat[0] == steep[0] == 0 and flat[2] == steep[2] == 100
        assert 20 < flat[1] < steep[1] < 90  # 30% of the room has more than 30% of what is asked for
    assert shares["hypic-rag, Zipf 1", 30].value > shares["least recently used, Zipf 1", 30].value
    assert [plot.name for plot in plots_of(rows)] == ["hotpotqa_few-budget"]
    assert "hypic-rag, Zipf 0.7, budget 30%" in capsys.readouterr().out


def test_a_budget_beyond_everything_is_refused(few: Path) -> None:
    import tiny

    with pytest.raises(BadInput, match="budget cannot be 120: give a number from 0 to 100"):
        run_budget_sweep(tiny.engine("qwen3_5_text"), few, [120])
