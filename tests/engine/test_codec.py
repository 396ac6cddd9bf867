"""An engine whose cache has a codec: answers are made of what was stored, on a miss as on a hit."""

from pathlib import Path

import cases
import pytest
import tiny
import torch

from hypic_rag import Policy, Sampling, SegmentCache, SegmentEngine
from hypic_rag.cache import Hit
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.engine.device.shapes import layer_shapes
from hypic_rag.prompt import Part, Prompt

LOSSY = ("int8", "int8-kv8")
ALL_CASES = cases.all_cases()
FAMILIES = ("qwen3_5_text", "mamba2", "jamba", "minimax", "kimi_linear", "lfm2")


def prompt(*lengths: int) -> Prompt:
    return Prompt.build(tiny.ids(20, 1), [tiny.ids(n, n) for n in lengths], tiny.ids(13, 2))


@pytest.mark.parametrize("codec", LOSSY)
def test_cold_equals_warm_bit_for_bit(codec: str, tmp_path: Path) -> None:
    ask, scores = prompt(50, 9, 33), []
    with SegmentCache.open(tmp_path) as cache:
        engine = tiny.engine("qwen3_5_text", cache=cache, codec=codec)
        scores += [engine.score(ask, (5, 6)) for _ in range(2)]
        text = engine.generate(ask, Sampling(4)).token_ids
    with SegmentCache.open(tmp_path) as cache:
        restarted = tiny.engine("qwen3_5_text", cache=cache, codec=codec)
        scores.append(restarted.score(ask, (5, 6)))
        assert restarted.generate(ask, Sampling(4)).token_ids == text
    assert [{use.tier for use in score.report.segments} for score in scores] == [{None}, {"host"}, {"disk"}]
    for score in scores[1:]:
        assert torch.equal(scores[0].logprobs, score.logprobs)
    as_computed = tiny.engine("qwen3_5_text").score(ask, (5, 6))
    assert not torch.equal(as_computed.logprobs, scores[0].logprobs)  # a codec that does nothing would pass the above


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_near_what_was_computed(name: str, codec: str) -> None:
    """Logits have a spread of 1.2, and a lost T moves them by 0.6 and more; rounding S to 8 bits, 0.07 at most."""
    model, ask = ALL_CASES[name].build("hypic"), prompt(50, 9, 33)
    want = SegmentEngine(model, tiny.tokenizer(), name=name, fingerprint=name).score(ask, (5,)).logprobs
    engine = SegmentEngine(ALL_CASES[name].build("hypic"), tiny.tokenizer(), name=name, fingerprint=name, codec=codec)
    cold, warm = (engine.score(ask, (5,)).logprobs for _ in range(2))
    assert torch.equal(cold, warm)
    assert (cold - want).square().mean().sqrt() < 0.1


@pytest.mark.parametrize("codec", LOSSY)
def test_the_device_gets_the_stored_copy(codec: str) -> None:
    engine = tiny.engine("qwen3_5_text", codec=codec)
    wanted = [(Part("document", tiny.ids(n, n)), 8) for n in (50, 33)]
    shapes = layer_shapes(engine.cache_spec, torch.float32)
    seen = []
    for _ in range(2):  # a miss, then a hit of the host tier: each in pools of its own
        pool = DevicePool(shapes, "cpu", n_slots=4, n_tokens=256)
        placed = engine.segments.place(wanted, (), pool, 0.0)
        assert placed is not None
        seen.append((placed, [pool.views(placed.entries[part]) for part, _ in wanted]))  # type: ignore[arg-type]
    assert [use.tier for use in seen[0][0].uses.values()] == [None, None]
    assert [use.tier for use in seen[1][0].uses.values()] == ["host", "host"]
    for (part, seam), cold, warm in zip(wanted, seen[0][1], seen[1][1], strict=True):
        found = engine.cache.lookup(engine.segments.key(part, seam))
        assert isinstance(found, Hit)
        for stored, *views in zip(found.entry.layers, cold, warm, strict=True):
            for name, tensor in stored.tensors.items():
                assert all(torch.equal(view[name], tensor) for view in views), name


@pytest.mark.parametrize("codec", LOSSY)
def test_bytes_are_those_of_the_encoded_entry(codec: str) -> None:
    engine, ids = tiny.engine("qwen3_5_text", codec=codec), tiny.ids(147, 147)
    report = engine.prefill([ids])
    found = engine.cache.lookup(engine.segment_key(ids))
    assert isinstance(found, Hit)
    assert report.nbytes == found.nbytes == engine.cache.nbytes("host")
    assert found.nbytes <= engine.entry_bytes(147) < tiny.engine("qwen3_5_text").entry_bytes(147) / 2
    assert engine.cache_spec.misfit(found.entry) is None


def test_engines_of_other_codecs_do_not_share() -> None:
    cache = SegmentCache.open(None, None, None)
    engines = [tiny.engine("qwen3_5_text", cache=cache, codec=codec) for codec in ("none", *LOSSY, "none")]
    assert [engine.prefill([tiny.ids(50, 5)]).n_hits for engine in engines] == [0, 0, 0, 1]


def test_an_entry_of_another_shape_is_a_miss() -> None:
    """Whole and of the codec, but not of the model: found after decoding."""
    from dataclasses import replace

    engine, ask = tiny.engine("qwen3_5_text", codec="int8", deterministic=True), prompt(50)
    want = engine.score(ask, (5,))
    key = engine.segment_key(ask.documents[0], policy=Policy())
    entry = engine.cache.lookup(key).entry  # type: ignore[union-attr]
    first = replace(entry.layers[0], tensors={**entry.layers[0].tensors, "T": entry.layers[0].tensors["T"][:1]})
    engine.cache.discard([key.digest])
    engine.cache.put(key, replace(entry, layers=(first, *entry.layers[1:])))
    again = engine.score(ask, (5,))
    assert again.report.segments[0].miss_reason == "wrong_shape"
    assert torch.equal(again.logprobs, want.logprobs)
