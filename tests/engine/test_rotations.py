"""Rotations that change with the length: exact up to their switch, refused beyond it but in full mode.

transformers takes the frequencies of dynamic NTK and LongRoPE from the largest position of a pass, and dynamic NTK
also from the passes before. A plain model is made new for every comparison, so that it remembers nothing.
"""

from functools import cache
from typing import Any

import pytest
import tiny
import torch
import two_stream
from cases import Case
from torch import Tensor

from hypic_rag import Policy, Sampling, SegmentEngine
from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import Part, Prompt

TOLERANCE = 1e-4
SWITCH = 128
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": SWITCH}
SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 24, "head_dim": 16}
CASES = {
    "dynamic": Case("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": SWITCH}),
    "dynamic in one layer type": Case(
        "gemma3_text",
        {
            **KINDS,
            "rope_parameters": {
                "full_attention": DYNAMIC,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "max_position_embeddings": SWITCH,
        },
    ),
    "longrope": Case(
        "llama",
        {
            "rope_parameters": {**LONGROPE, "short_factor": SHORT, "long_factor": LONG},
            "max_position_embeddings": 4 * SWITCH,
        },
    ),
    "longrope of a part of the head": Case(
        "phi3",
        {
            "rope_parameters": {
                **LONGROPE,
                "partial_rotary_factor": 0.5,
                "short_factor": SHORT[:4],
                "long_factor": LONG[:4],
            },
            "original_max_position_embeddings": SWITCH,
            "max_position_embeddings": 4 * SWITCH,
        },
    ),
}


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def engine_of(name: str) -> SegmentEngine:
    engine = SegmentEngine(CASES[name].build("hypic"), tiny.tokenizer(), name=name, fingerprint=name)
    engine._ends = frozenset()
    return engine


def prompt(*lengths: int, leading: int = 20) -> Prompt:
    return Prompt.build(tiny.ids(leading, 1), [tiny.ids(n, n) for n in lengths], tiny.ids(13, 2))


BELOW, BEYOND = prompt(40, 33), prompt(40, 133, 60)


def assembled(engine: SegmentEngine, prompt: Prompt, policy: Policy) -> Tensor:
    """Logits (n_active, vocabulary) of all active rows."""
    [one] = engine.backend.start([SequenceRequest(prompt, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    return assemble.run(engine.model, engine.cache_spec, [active], [range(len(active.ids))])[0]


@torch.no_grad()
def plain_logits(name: str, ids: tuple[int, ...]) -> Tensor:
    return CASES[name].build()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.float() - b.float()).abs().max())


def test_up_to_the_switch_reuse_is_exact(name: str) -> None:
    engine, at_switch = engine_of(name), prompt(leading=SWITCH - 13)
    want = two_stream.logits(CASES[name].build(), BELOW, Policy(), CASES[name].stepped_modules)
    assert worst(assembled(engine, BELOW, Policy()), want) < TOLERANCE
    assert worst(assembled(engine, at_switch, Policy()), plain_logits(name, at_switch.token_ids)[-13:]) < TOLERANCE


def test_full_mode_equals_the_plain_model_after_any_other_pass(name: str) -> None:
    """A long one, a shorter one that is still beyond the switch, one at the switch, and one below it."""
    for ask in (BEYOND, prompt(40, 100), prompt(leading=SWITCH - 13), BELOW):
        got = assembled(engine_of(name), ask, Policy("full"))
        assert worst(got, plain_logits(name, ask.token_ids)) < TOLERANCE


def test_the_switch_matters(name: str) -> None:
    """By over 100 tolerances, or the tests here could not tell."""
    ids = BEYOND.token_ids
    assert worst(plain_logits(name, ids)[:100], plain_logits(name, ids[:100])) > 100 * TOLERANCE


REFUSED = {
    "a prompt": lambda engine: engine.generate(BEYOND),
    "a stream": lambda engine: engine.stream(BEYOND),
    "a request": lambda engine: engine.add_request(BEYOND),
    "a long answer": lambda engine: engine.score(BELOW, tiny.ids(40, 3)),
    "a long segment": lambda engine: engine.prefill([tiny.ids(SWITCH + 1, 3)]),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_beyond_the_switch_reuse_is_refused(name: str, refused: Any) -> None:
    with pytest.raises(ContextTooLong, match=rf"beyond {SWITCH} this model rotates all keys by other frequencies"):
        refused(engine_of(name))


def test_an_assembled_answer_ends_at_the_switch(name: str) -> None:
    generation = engine_of(name).generate(BELOW, Sampling(max_new_tokens=50))
    assert generation.finish_reason == "length"
    assert BELOW.n_tokens + len(generation.token_ids) - 1 == SWITCH  # the last token was drawn, not run


def test_a_full_answer_goes_on_over_the_switch(name: str) -> None:
    """All keys are made again where their rotation changes; from there as the plain model decodes with its cache."""
    ask, tokens = prompt(40, 50), []
    while ask.n_tokens + len(tokens) <= SWITCH:
        tokens.append(int(plain_logits(name, (*ask.token_ids, *tokens))[-1].argmax()))
    ids = torch.tensor([[*ask.token_ids, *tokens]])
    rest = CASES[name].build().generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=2)
    want = tuple(rest[0, ask.n_tokens :].tolist())
    assert engine_of(name).generate(ask, Sampling(max_new_tokens=len(want)), Policy("full")).token_ids == want


def test_requests_on_both_sides_of_the_switch_do_not_mix(name: str) -> None:
    engine, sampling = engine_of(name), Sampling(max_new_tokens=5)
    asked = [(BELOW, Policy()), (BEYOND, Policy("full")), (prompt(40), Policy()), (prompt(40, 100), Policy("full"))]
    alone = [engine.generate(ask, sampling, policy).token_ids for ask, policy in asked]
    numbers = [engine.add_request(ask, sampling, policy) for ask, policy in asked]
    together = {}
    while engine.has_work:
        together |= {output.request_id: output.generation for output in engine.step() if output.generation}
    assert [together[number].token_ids for number in numbers] == alone


def test_a_conversation_beyond_the_switch_begins_again(name: str) -> None:
    engine, ask = engine_of(name), prompt(40, 50)
    first = engine.generate(ask, Sampling(max_new_tokens=3), Policy("full"))
    second = ask.extend((*first.token_ids, 2), [tiny.ids(50, 50)], tiny.ids(9, 8))
    turn = engine.generate(second, Sampling(max_new_tokens=1), Policy("full"))
    assert turn.report.resumed_tokens == 0
    assert turn.token_ids == (int(plain_logits(name, second.token_ids)[-1].argmax()),)


def test_many_segments_in_a_pass_stay_below_the_switch(name: str) -> None:
    """Positions are each segment's own: 600 rows at once are rotated as 60 are."""
    parts = [(Part("document", tiny.ids(60, seed)), 8) for seed in range(10, 20)]
    packed, single = (
        SegmentEngine(CASES[name].build("hypic"), tiny.tokenizer(), name=name, fingerprint=name, deterministic=alone)
        for alone in (False, True)
    )
    together, alone = packed.segments.fetch(parts).entries, single.segments.fetch(parts).entries
    for part, _ in parts:
        for a, b in zip(together[part].layers, alone[part].layers, strict=True):
            assert all((a.tensors[key] - b.tensors[key]).norm() <= 1e-5 * b.tensors[key].norm() for key in b.tensors)
