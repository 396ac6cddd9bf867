"""Every architecture, tiny and random but with live decays, against the plain Hugging Face model of the same weights.

On a GPU: HYPIC_TEST_DEVICE=cuda pytest tests/engine/test_architectures.py
Logits have a spread of about one and fp32 noise of 1e-5 to 4e-5; 1e-4 is the bound throughout (twice that on a GPU,
whose sums come in another order: up to 1.5e-4 was seen). A lost transition moves them by over 100 bounds
(test_policies_differ).
"""

from functools import cache
from pathlib import Path
from typing import Any

import cases
import pytest
import tiny
import torch
import two_stream
from torch import Tensor

from hypic_rag import Policy, Sampling, SegmentCache, SegmentEngine
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.prompt import Part, Prompt

CASES = cases.all_cases()
TOLERANCE = 1e-4 if cases.DEVICE == "cpu" else 2e-4
SEAM = 8
VARIANTS = {  # of a recurrence that another case has with the same kernel and chunks
    "bailing_hybrid_yarn", "ring_2.5", "falcon_h1 norm after the gate", "falcon_h1 norm before the gate",
    "granitemoehybrid dense, rotary", "jamba dense", "lfm2_bias", "lfm2_moe", "olmo_hybrid_rotated", "qwen3_5_moe_text",
    "qwen3_5_text, yarn", "qwen3_5_text, whole head", "zamba2 two blocks, adapters, rotary", "falcon_mamba",
}  # fmt: skip


@cache
def plain_of(name: str) -> Any:
    return CASES[name].build()


def new_engine(name: str, **options: Any) -> SegmentEngine:
    return SegmentEngine(CASES[name].build("hypic"), tiny.tokenizer(), name=name, fingerprint=name, **options)


@cache
def engine_of(name: str) -> SegmentEngine:
    return new_engine(name)


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prompt(*lengths: int, leading: int = 20) -> Prompt:
    return Prompt.build(tiny.ids(leading, 1), [tiny.ids(n, n) for n in lengths], tiny.ids(13, 2))


def assembled(engine: SegmentEngine, prompt: Prompt, policy: Policy) -> Tensor:
    """Logits (n_active, vocabulary) of all active rows."""
    [one] = engine.backend.start([SequenceRequest(prompt, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    return engine.backend.run([active], [range(len(active.ids))])[0]


def oracle(name: str, prompt: Prompt, policy: Policy) -> Tensor:
    case = CASES[name]
    return two_stream.logits(plain_of(name), prompt, policy, case.stepped_modules, case.stepped)


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.float() - b.float()).abs().max())


@torch.no_grad()
def plain_logits(name: str, ids: tuple[int, ...]) -> Tensor:
    return plain_of(name)(input_ids=torch.tensor([ids], device=cases.DEVICE), use_cache=False).logits[0]


def test_memory_is_live(name: str) -> None:
    """Without this no other test here means anything (40 to 65% of heads at 512 tokens)."""
    engine, part = engine_of(name), Part("document", tiny.ids(512 + SEAM, 9))
    if not CASES[name].live:
        pytest.skip("the architecture fixes its decays, or has none")
    [entry] = engine.segments.fetch([(part, SEAM)]).entries.values()
    norms = []
    for layer, kept in zip(engine.cache_spec.layers, entry.layers, strict=True):
        if isinstance(layer, LinearLayer) and layer.family is not None:
            eye = torch.eye(layer.k_dim).expand(layer.n_heads, -1, -1)
            T = layer.family.transition.compose(eye, dict(kept.tensors), torch.zeros_like(eye), 512, layer)
            norms.append(T.flatten(1).norm(dim=1))
    assert 0.40 <= (torch.cat(norms) >= 1e-4).float().mean() <= 0.65


def test_leading_and_question_equal_the_plain_model(name: str) -> None:
    ask = prompt(leading=37)
    want = plain_logits(name, ask.token_ids)
    assert worst(assembled(engine_of(name), ask, Policy()), want[-13:]) < TOLERANCE


def test_full_mode_equals_the_plain_model(name: str) -> None:
    ask = prompt(70, 5, 130)
    tolerance = TOLERANCE if cases.DEVICE == "cpu" else CASES[name].tolerance
    assert worst(assembled(engine_of(name), ask, Policy("full")), plain_logits(name, ask.token_ids)) < tolerance


def test_greedy_decoding_equals_the_plain_model(name: str) -> None:
    """Of 16 tokens; the plain model runs the whole text again for each, without a cache."""
    ask = prompt(leading=37)
    ids = list(ask.token_ids)
    for _ in range(16):
        ids.append(int(plain_logits(name, tuple(ids))[-1].argmax()))
    for policy in (Policy(), Policy("full")):
        engine = engine_of(name)
        engine._ends = frozenset()
        got = engine.generate(ask, Sampling(max_new_tokens=16), policy).token_ids
        assert got == tuple(ids[-16:])


@pytest.mark.parametrize("compose", ["exact", "last_state", "add"])
def test_every_policy_equals_the_two_stream_oracle(name: str, compose: Any) -> None:
    ask, policy = prompt(70, 33), Policy(compose=compose)
    assert worst(assembled(engine_of(name), ask, policy), oracle(name, ask, policy)) < TOLERANCE


@pytest.mark.parametrize("lengths", [(1, SEAM - 1, SEAM, SEAM + 1, 3), (300, 10)], ids=["short", "long"])
def test_every_length_equals_the_two_stream_oracle(name: str, lengths: tuple[int, ...]) -> None:
    """1, w - 1, w, w + 1 and conv - 1 tokens, and interiors shorter than a convolution; 300 tokens, of variants 150."""
    ask = prompt(*(150 if n == 300 and name in VARIANTS else n for n in lengths))
    assert worst(assembled(engine_of(name), ask, Policy()), oracle(name, ask, Policy())) < TOLERANCE


def test_policies_differ(name: str) -> None:
    """By over 100 tolerances each, or a test of one could not tell it from another."""
    if not any(isinstance(layer, LinearLayer) and layer.family for layer in engine_of(name).cache_spec.layers):
        pytest.skip("no recurrence, so there is nothing to compose")
    ask = prompt(70, 33)
    last = {c: assembled(engine_of(name), ask, Policy(compose=c))[-1] for c in ("exact", "last_state", "add")}
    for a, b in (("exact", "last_state"), ("exact", "add"), ("last_state", "add")):
        assert worst(last[a], last[b]) > 100 * TOLERANCE


def tensors(engine: SegmentEngine, segments: list[tuple[int, ...]], together: bool) -> list[dict[str, Tensor]]:
    parts = [(Part("document", ids), SEAM) for ids in segments]
    made = {}
    for group in [parts] if together else [[part] for part in parts]:
        made |= engine.segments.fetch(group).entries
    return [
        {f"{i}.{key}": t for i, layer in enumerate(made[part].layers) for key, t in layer.tensors.items()}
        for part, _ in parts
    ]


@pytest.mark.parametrize("deterministic", [False, True], ids=["packed", "deterministic"])
def test_an_entry_is_decided_by_its_segment(name: str, deterministic: bool) -> None:
    """Other neighbours, another order, twice; rounding where packed, equal bits in deterministic mode."""
    segments = [tiny.ids(n, n) for n in (100, 33, 9)]
    together, alone, backwards = (
        tensors(new_engine(name, deterministic=deterministic), order, at_once)
        for order, at_once in ((segments, True), (segments, False), ([*segments[::-1], segments[0]], True))
    )
    for a, b, c in zip(together, alone, backwards[:3][::-1], strict=True):
        for key in a:
            if deterministic:
                assert torch.equal(a[key], b[key]) and torch.equal(a[key], c[key])
            else:
                for other in (b[key], c[key]):
                    assert (a[key] - other).norm() <= 1e-5 * a[key].norm().clamp_min(1e-20)


def test_requests_at_once_equal_requests_alone(name: str) -> None:
    """Greedy tokens of three prompts in shared passes; the tiny models' top-two gaps are far above rounding."""
    engine, sampling = engine_of(name), Sampling(max_new_tokens=4)
    asks = [prompt(70, 33), prompt(33), prompt(leading=5)]
    alone = [engine.generate(ask, sampling).token_ids for ask in asks]
    numbers = {engine.add_request(ask, sampling): i for i, ask in enumerate(asks)}
    got: dict[int, tuple[int, ...]] = {}
    while engine.has_work:
        for output in engine.step():
            if output.generation:
                got[numbers[output.request_id]] = output.generation.token_ids
    assert [got[i] for i in range(3)] == alone


@pytest.mark.parametrize("n", [SEAM, SEAM + 1, 40])
def test_the_forecast_of_bytes_is_exact(name: str, n: int) -> None:
    engine, part = new_engine(name), Part("document", tiny.ids(n, n))
    engine.prefill([part.ids])
    assert engine.cache.nbytes("host") == engine.entry_bytes(n)


def test_an_entry_comes_back_from_disk_with_equal_bits(name: str, tmp_path: Path) -> None:
    part = (Part("document", tiny.ids(40, 4)), SEAM)
    with SegmentCache.open(tmp_path) as cache_:
        [made] = new_engine(name, cache=cache_).segments.fetch([part]).entries.values()
    with SegmentCache.open(tmp_path) as cache_:
        fetched = new_engine(name, cache=cache_).segments.fetch([part])
    assert fetched.uses[part[0]].tier == "disk"
    [found] = fetched.entries.values()
    for a, b in zip(made.layers, found.layers, strict=True):
        assert a.family == b.family and a.tensors.keys() == b.tensors.keys()
        assert all(torch.equal(a.tensors[key], b.tensors[key]) for key in a.tensors)
