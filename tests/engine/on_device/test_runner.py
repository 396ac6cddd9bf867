"""Pools, kernels and the runner against the engine's own way in torch: the same logits, whatever shares the pools.

On a CPU the kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/engine/on_device (needs triton).
On a GPU: HYPIC_TEST_DEVICE=cuda pytest tests/engine/on_device
"""

import os
from functools import cache
from typing import Any

import pytest
import tiny
import torch

pytest.importorskip("triton", reason="pip install triton==3.7.1")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)

from hypic_rag import Policy, Sampling, SegmentEngine  # noqa: E402
from hypic_rag.errors import BadInput  # noqa: E402
from hypic_rag.prompt import Part, Prompt  # noqa: E402

KINDS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
CHANGES = {"linear_value_head_dim": 16}
if DEVICE == "cpu":  # the interpreter takes a second for what a GPU does in microseconds
    CHANGES |= {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
SHORT, LONG = ((14, 5, 11), 20) if DEVICE == "cpu" else ((70, 5, 33), 300)
MEMORY = 64 << 20
TOLERANCE = 1e-4 if DEVICE == "cpu" else 2e-4
"""Of logits with a spread of about one: float32 sums in another order."""
LEADING = tiny.ids(9, 1)


def prompt(*lengths: int, question: int = 2) -> Prompt:
    return Prompt.build(LEADING, [tiny.ids(n, n) for n in lengths], tiny.ids(6, question))


def new_engine(kind: str, memory: int = MEMORY, **options: Any) -> SegmentEngine:
    model = tiny.build(kind, "hypic", **CHANGES).to(DEVICE)
    options = {"name": kind, "fingerprint": kind, "device_memory": memory, **options}
    return SegmentEngine(model, tiny.tokenizer(), **options)


@cache
def pooled(kind: str) -> SegmentEngine:
    engine = new_engine(kind)
    assert engine.runner is not None
    return engine


@cache
def in_torch(kind: str) -> SegmentEngine:
    engine = new_engine(kind, memory=0)
    assert engine.runner is None
    return engine


def logits(engine: SegmentEngine, ask: Prompt, policy: Policy) -> torch.Tensor:
    """Of all active rows, on the CPU."""
    [(active, _)] = engine._begin([(ask, policy, 1)], resume=False)
    made = engine._run([active], [range(len(active.ids))])[0].float().cpu()
    active.state.release()
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [Policy(), Policy(compose="last_state"), Policy(compose="add"), Policy("full")])
def test_equals_torch(kind: str, policy: Policy) -> None:
    ask = prompt(*SHORT)
    ours, theirs = (logits(engine, ask, policy) for engine in (pooled(kind), in_torch(kind)))
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("lengths", [(), (1,), (7, 8, 9, 3), (9, 9, 9), (LONG,)])
def test_edge_lengths(lengths: tuple[int, ...]) -> None:
    ask = prompt(*lengths)
    ours, theirs = (logits(engine, ask, Policy()) for engine in (pooled(KINDS[0]), in_torch(KINDS[0])))
    assert (ours - theirs).abs().max() < TOLERANCE


def test_more_rows_than_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = prompt(*SHORT)
    monkeypatch.setattr("hypic_rag.engine.device.runner.MAX_ROWS", 11)
    ours, theirs = (logits(engine, ask, Policy()) for engine in (pooled(KINDS[0]), in_torch(KINDS[0])))
    assert (ours - theirs).abs().max() < TOLERANCE


def test_requests_together_equal_each_alone() -> None:
    asked = [
        (prompt(18, 14), Policy()),
        (prompt(7), Policy("full")),
        (prompt(), Policy()),
        (prompt(18, question=3), Policy(compose="last_state")),
    ]
    sampling = Sampling(max_new_tokens=4)
    alone = [in_torch(KINDS[0]).generate(p, sampling, policy).token_ids for p, policy in asked]
    engine, ids, together = pooled(KINDS[0]), [], {}
    for p, policy in asked:
        ids.append(engine.add_request(p, sampling, policy))
        for output in engine.step():  # the earlier ones are decoding when this one joins
            together[output.request_id] = output
    while engine.has_work:
        together |= {output.request_id: output for output in engine.step()}
    assert [together[i].generation.token_ids for i in ids] == alone


def test_a_conversation_resumes_where_it_ended() -> None:
    first, sampling = prompt(18, 14), Sampling(max_new_tokens=4)
    for engine in (pooled(KINDS[0]), in_torch(KINDS[0])):
        said = engine.generate(first, sampling).token_ids
        second = Prompt((*first.parts[:-1], Part("live", first.parts[-1].ids + said + tiny.ids(4, 7))))
        again = engine.generate(second, sampling)
        assert again.report.resumed_tokens == first.n_tokens + 3  # the last drawn token was never run
        engine.conversations.budget = 0
        while engine.conversations.drop():
            pass
        assert engine.generate(second, sampling).token_ids == again.token_ids
        engine.conversations.budget = 1 << 30
    assert (said, again.token_ids) == (said, engine.generate(second, sampling).token_ids)


def test_warm_segments_come_from_the_device() -> None:
    engine = new_engine(KINDS[0])
    cold, warm = (engine.generate(prompt(18, 5, 14), Sampling(max_new_tokens=2)) for _ in range(2))
    assert [use.tier for use in cold.report.segments] == [None, "live", None]
    assert [use.tier for use in warm.report.segments] == ["device", "live", "device"]
    assert warm.token_ids == cold.token_ids


def test_what_never_fits_is_refused_and_others_go_on() -> None:
    engine = new_engine(KINDS[0], memory=1 << 20)
    huge = Prompt.build(LEADING, [tiny.ids(1500, n) for n in range(40, 45)], tiny.ids(6, 2))
    with pytest.raises(BadInput, match="--device-memory"):
        engine.generate(huge, Sampling(max_new_tokens=2))
    small = prompt(14)
    expected = in_torch(KINDS[0]).generate(small, Sampling(max_new_tokens=3)).token_ids
    assert engine.generate(small, Sampling(max_new_tokens=3)).token_ids == expected
    assert not engine.has_work
