"""Tokens before a segment in isolation, for models that lean on a first one: they take no position and no entry."""

from functools import cache
from typing import Any

import cases
import pytest
import tiny
import torch
import two_stream
from torch import Tensor

from hypic_rag import Policy, Sampling, SegmentEngine
from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Part, Prompt

TOLERANCE = 1e-4
NAMES = ("llama", "gemma3_text", "bamba", "qwen3_5_text")
PREFIX = (1, 7, 9, 4)
POLICIES = {
    "one token": Policy(isolation_prefix=(1,)),
    "four tokens": Policy(isolation_prefix=PREFIX),
    "no seam": Policy(seam_tokens=0, isolation_prefix=PREFIX),
    "last_state": Policy(compose="last_state", isolation_prefix=PREFIX),
    "add": Policy(compose="add", isolation_prefix=PREFIX),
}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(name: str, attn_implementation: str = "eager") -> Any:
    if name in tiny.CONFIGS:
        return tiny.build(name, attn_implementation)
    return cases.all_cases()[name].build(attn_implementation)


plain_of = cache(build)


@cache
def engine_of(name: str) -> SegmentEngine:
    return SegmentEngine(build(name, "hypic"), tiny.tokenizer(), name=name, fingerprint=name)


def prompt(*lengths: int, leading: int = 20) -> Prompt:
    return Prompt.build(tiny.ids(leading, 1), [tiny.ids(n, n) for n in lengths], tiny.ids(13, 2))


def assembled(name: str, prompt: Prompt, policy: Policy) -> Tensor:
    engine = engine_of(name)
    [one] = engine.backend.start([SequenceRequest(prompt, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    return assemble.run(engine.model, engine.cache_spec, [active], [range(len(active.ids))])[0]


def oracle(name: str, prompt: Prompt, policy: Policy) -> Tensor:
    if name in tiny.CONFIGS:
        return two_stream.logits(plain_of(name), prompt, policy, tiny.mixers)
    case = cases.all_cases()[name]
    return two_stream.logits(plain_of(name), prompt, policy, case.stepped_modules, case.stepped)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.float() - b.float()).abs().max())


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_equals_the_two_stream_oracle(name: str, policy: Policy) -> None:
    for ask in (prompt(40, 5, 17), prompt(9, 20, leading=0)):  # the second begins before position 0 in isolation
        assert worst(assembled(name, ask, policy), oracle(name, ask, policy)) < TOLERANCE


def test_the_prefix_matters(name: str) -> None:
    """By over 100 tolerances, or the test above could not tell."""
    ask = prompt(70, 33)
    with_it, without = (assembled(name, ask, policy)[-1] for policy in (POLICIES["four tokens"], Policy()))
    assert worst(with_it, without) > 100 * TOLERANCE


def test_entries_and_keys_are_others(name: str) -> None:
    engine, ids = engine_of(name), tiny.ids(40, 4)
    part = Part("document", ids)
    plain, led = (engine.segments.fetch([(part, 8)], prefix).entries[part] for prefix in ((), PREFIX))
    assert (plain.n_tokens, plain.seam_tokens) == (led.n_tokens, led.seam_tokens) == (40, 8)
    for a, b in zip(plain.layers, led.layers, strict=True):
        assert {key: t.shape for key, t in a.tensors.items()} == {key: t.shape for key, t in b.tensors.items()}
    apart = [
        key
        for a, b in zip(plain.layers, led.layers, strict=True)
        for key in a.tensors
        if worst(a.tensors[key], b.tensors[key]) > 1e-3
    ]
    assert apart
    keys = {engine.segment_key(ids, policy=policy).digest for policy in (Policy(), *POLICIES.values())}
    assert len(keys) == 4  # the compositions share entries
    assert engine.segment_key(ids, policy=POLICIES["add"]).isolation_prefix == PREFIX


def test_a_leading_segment_has_no_prefix(name: str) -> None:
    engine, ids = engine_of(name), tiny.ids(20, 1)
    assert engine.segment_key(ids, "leading", POLICIES["add"]) == engine.segment_key(ids, "leading", Policy())
    ask = prompt()
    assert torch.equal(assembled(name, ask, POLICIES["four tokens"]), assembled(name, ask, Policy()))


def test_what_is_prefilled_is_found() -> None:
    """Under the engine's own policy: prefill, keys and prompts agree, and reports carry the prefix."""
    policy = Policy(isolation_prefix=(1,))
    engine = tiny.engine("qwen3_5_text", policy=policy)
    ask = prompt(70, 33)
    report = engine.prefill(ask.documents)
    assert (report.n_prefilled, report.n_tokens) == (2, 103)
    assert all(engine.cache.contains(engine.segment_key(ids)) for ids in ask.documents)
    assert engine.entry_bytes(70) == engine.cache.lookup(engine.segment_key(ask.documents[0])).entry.nbytes
    answer = engine.generate(ask, Sampling(max_new_tokens=3)).report
    assert [use.tier for use in answer.segments] == ["host", "host"]
    assert answer.policy == policy and answer.prompt_tokens == ask.n_tokens
    assert engine.score(ask, (5,)).report.policy.isolation_prefix == (1,)
    without = engine.generate(ask, Sampling(max_new_tokens=3), Policy()).report
    assert [use.miss_reason for use in without.segments] == ["never_seen", "never_seen"]


def test_a_conversation_keeps_to_its_prefix() -> None:
    engine = tiny.engine("qwen3_5_text", policy=Policy(isolation_prefix=(1,)))
    first = engine.generate(prompt(70), Sampling(max_new_tokens=5))
    second = prompt(70).extend((*first.token_ids, 2), [tiny.ids(50, 50)], tiny.ids(9, 8))
    turn = engine.generate(second, Sampling(max_new_tokens=5))
    assert turn.report.resumed_tokens == 103 + 4 and turn.report.policy == engine.policy
    assert engine.generate(second, Sampling(max_new_tokens=5), Policy()).report.resumed_tokens == 0
    forgetful = tiny.engine("qwen3_5_text", policy=engine.policy, conversation_budget=0)
    assert forgetful.generate(second, Sampling(max_new_tokens=5)).token_ids == turn.token_ids


def test_policies_that_shape_entries_differently_share_a_step() -> None:
    """The same document with another seam and with a prefix, admitted at once: each gets its own entry."""
    engine, sampling, ask = tiny.engine("qwen3_5_text"), Sampling(max_new_tokens=6), prompt(70, 33)
    policies = [Policy(), Policy(seam_tokens=32), Policy(isolation_prefix=PREFIX), Policy("full")]
    numbers = [engine.add_request(ask, sampling, policy) for policy in policies]
    together = {}
    while engine.has_work:
        together |= {output.request_id: output.generation for output in engine.step() if output.generation}
    for number, policy in zip(numbers, policies, strict=True):
        alone = tiny.engine("qwen3_5_text").generate(ask, sampling, policy)
        assert together[number].token_ids == alone.token_ids
        assert together[number].report.policy == policy


REFUSED = {
    "a list": lambda engine: Policy(isolation_prefix=[1]),  # type: ignore[arg-type]
    "a negative id": lambda engine: Policy(isolation_prefix=(-1,)),
    "no number": lambda engine: Policy(isolation_prefix=("<s>",)),  # type: ignore[arg-type]
    "an unknown token, to prefill": lambda engine: engine.prefill(
        [tiny.ids(50, 5)], policy=Policy(isolation_prefix=(10**8,))
    ),
    "an unknown token, to ask": lambda engine: engine.generate(prompt(50), policy=Policy(isolation_prefix=(10**8,))),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_what_is_no_prefix_is_refused(refused: Any) -> None:
    with pytest.raises(BadInput):
        refused(engine_of("llama"))
