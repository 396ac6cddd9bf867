"""Several answers to one prompt: the same as asked one by one, and the prompt is run once."""

from typing import Any

import pytest

from hypic_rag import Policy, SegmentEngine
from hypic_rag.engine import Sampling
from hypic_rag.prompt import Prompt

FULL, HYPIC = Policy("full"), Policy("hypic")


def asked(engine: SegmentEngine) -> Prompt:
    return engine.format.prompt("Who built it?", [("Lighthouse", "It was built in 1871 by Ada Marrow. " * 3)])


def finished(engine: SegmentEngine) -> dict[int, Any]:
    done = {}
    while engine.has_work:
        done |= {one.request_id: one for one in engine.step() if one.generation or one.error}
    return done


@pytest.mark.parametrize("policy", [FULL, HYPIC], ids=["full", "hypic"])
def test_each_is_as_if_asked_alone(gdn_engine: SegmentEngine, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, sampling = asked(gdn_engine), Sampling(6, 3.0, seed=7)
    alone = [gdn_engine.generate(prompt, one, policy).token_ids for one in sampling.several(3)]
    assert len({*alone}) == 3
    gdn_engine.forget()  # no end state of theirs to go on from
    rows, run = [], gdn_engine.backend.run

    def counted(batch: Any, keep: Any) -> Any:
        rows.append(sum(len(one.ids) for one in batch))
        return run(batch, keep)

    monkeypatch.setattr(gdn_engine.backend, "run", counted)
    ids = gdn_engine.add_requests(prompt, sampling.several(3), policy)
    done = finished(gdn_engine)
    assert [done[i].generation.token_ids for i in ids] == alone
    assert rows[1:] == [3] * 5 and rows[0] == len(
        [*prompt.token_ids] if policy is FULL else [*prompt.parts[1].ids[:8], *prompt.parts[-1].ids]
    )


def test_without_room_they_start_alone(gdn_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, sampling = asked(gdn_engine), Sampling(4, 3.0, seed=7)
    alone = [gdn_engine.generate(prompt, one).token_ids for one in sampling.several(2)]
    monkeypatch.setattr(gdn_engine.backend, "branch", lambda state, n_tokens: None)
    ids = gdn_engine.add_requests(prompt, sampling.several(2))
    done = finished(gdn_engine)
    assert [done[i].generation.token_ids for i in ids] == alone


@pytest.mark.parametrize("cancelled", [0, 1])
def test_one_may_leave(gdn_engine: SegmentEngine, cancelled: int) -> None:
    """Before anything is run; the other answers as ever."""
    prompt, sampling = asked(gdn_engine), Sampling(4, 3.0, seed=7)
    alone = [gdn_engine.generate(prompt, one).token_ids for one in sampling.several(2)]
    ids = gdn_engine.add_requests(prompt, sampling.several(2))
    gdn_engine.cancel(ids[cancelled])
    done = finished(gdn_engine)
    assert [*done] == [ids[1 - cancelled]]
    assert done[ids[1 - cancelled]].generation.token_ids == alone[1 - cancelled]


def test_seeds_go_up(gdn_engine: SegmentEngine) -> None:
    assert [one.seed for one in Sampling(seed=2**63 - 1).several(2)] == [2**63 - 1, 0]
    assert [one.seed for one in Sampling().several(2)] == [None, None]
