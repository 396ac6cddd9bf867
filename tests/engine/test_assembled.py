"""The assembled forward of one model, Qwen3.5, beyond the table of ``test_architectures``: seams, lengths, damage.

Logits have a spread of 1.2 and fp32 noise of 1e-5 to 4e-5 here; 1e-4 is the bound throughout. A lost transition
moves them by over 1 (test_architectures.test_policies_differ).
"""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import two_stream
from torch import Tensor

from hypic_rag import Policy, SegmentEngine
from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.prompt import Part, Prompt

TOLERANCE = 1e-4


def assembled(engine: SegmentEngine, prompt: Prompt, policy: Policy) -> Tensor:
    """Logits (n_active, vocabulary) of all active rows."""
    [one] = engine.backend.start([SequenceRequest(prompt, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    return assemble.run(engine.model, engine.cache_spec, [active], [range(len(active.ids))])[0]


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.float() - b.float()).abs().max())


POLICIES = {
    "seven segments, some of them all seam": Policy(),
    "no seam": Policy(seam_tokens=0),
    "seam 2, shorter than the convolution": Policy(seam_tokens=2),
    "seam 32": Policy(seam_tokens=32),
}
LENGTHS = {  # of the documents, for a seam of 8 and a convolution of 4
    "one token": [1],
    "around the seam": [7, 8, 9, 11],
    "interior shorter than the convolution": [10, 9, 40],
    "all seam at the end": [50, 8, 3],
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_seam_equals_the_two_stream_oracle(gdn_engine: SegmentEngine, gdn_plain: Any, policy: Policy) -> None:
    prompt = Prompt.build(tiny.ids(20, 1), [tiny.ids(n, n) for n in (1, 7, 8, 9, 3, 50, 40)], tiny.ids(13, 2))
    want = two_stream.logits(gdn_plain, prompt, policy, tiny.mixers)
    assert worst(assembled(gdn_engine, prompt, policy), want) < TOLERANCE


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_length_equals_the_two_stream_oracle(
    gdn_engine: SegmentEngine, gdn_plain: Any, lengths: list[int]
) -> None:
    for leading in ((), tiny.ids(2, 1)):
        prompt = Prompt.build(leading, [tiny.ids(n, n) for n in lengths], tiny.ids(13, 2))
        got = assembled(gdn_engine, prompt, Policy())
        assert worst(got, two_stream.logits(gdn_plain, prompt, Policy(), tiny.mixers)) < TOLERANCE


def test_cold_equals_warm_equals_restarted(tmp_path: Path) -> None:
    """Invariant 3, in bits: after a miss, from memory, and from disk in a new engine."""
    from hypic_rag import SegmentCache

    prompt = Prompt.build(tiny.ids(20, 1), [tiny.ids(n, n) for n in (150, 40)], tiny.ids(13, 2))
    with SegmentCache.open(tmp_path, None, None) as cache:
        engine = tiny.engine("qwen3_5_text", cache=cache)
        cold, warm = (engine.score(prompt, (5, 6, 7)) for _ in range(2))
    with SegmentCache.open(tmp_path, None, None) as cache:
        restarted = tiny.engine("qwen3_5_text", cache=cache).score(prompt, (5, 6, 7))
    assert [use.tier for use in cold.report.segments] == [None, None]
    assert [use.tier for use in warm.report.segments] == ["host", "host"]
    assert [use.tier for use in restarted.report.segments] == ["disk", "disk"]
    assert torch.equal(cold.first_logprobs, warm.first_logprobs) and cold.nll == warm.nll
    assert torch.equal(cold.first_logprobs, restarted.first_logprobs) and cold.nll == restarted.nll


def test_an_entry_that_does_not_fit_the_model_is_a_miss() -> None:
    """Invariant 6 for what only the engine can see: shapes. The answer is as if nothing had been stored."""
    from dataclasses import replace

    engine = tiny.engine("qwen3_5_text")
    prompt = Prompt.build((), [tiny.ids(50, 5)], tiny.ids(13, 2))
    want = engine.score(prompt, (5,))
    key = engine.segment_key(prompt.documents[0])
    part = Part("document", prompt.documents[0])
    entry = engine.segments.fetch([(part, 8)]).entries[part]
    first = entry.layers[0]
    broken = replace(first, tensors={**first.tensors, "T": first.tensors["T"][:1]})
    engine.cache.discard([key.digest])
    engine.cache.put(key, replace(entry, layers=(broken, *entry.layers[1:])))
    again = engine.score(prompt, (5,))
    assert again.report.segments[0].miss_reason == "wrong_shape"
    assert torch.equal(again.first_logprobs, want.first_logprobs)


DAMAGE = {
    "a flipped bit": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
    ),
    "a truncated file": lambda data: data[: len(data) // 3],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_changes_no_answer(tmp_path: Path, damage: Any) -> None:
    """Found on load, prefilled again; in deterministic mode the answer has the same bits."""
    from hypic_rag import SegmentCache

    prompt = Prompt.build(tiny.ids(20, 1), [tiny.ids(n, n) for n in (150, 40)], tiny.ids(13, 2))
    with SegmentCache.open(tmp_path, None, None) as cache:
        want = tiny.engine("qwen3_5_text", cache=cache, deterministic=True).score(prompt, (5, 6, 7))
    for file in tmp_path.glob("*/*.safetensors"):
        file.write_bytes(damage(file.read_bytes()))
    with SegmentCache.open(tmp_path, None, None) as cache:
        engine = tiny.engine("qwen3_5_text", cache=cache, deterministic=True)
        got, again = (engine.score(prompt, (5, 6, 7)) for _ in range(2))
    assert {use.miss_reason for use in got.report.segments} <= {"damaged", "truncated"}
    assert [use.tier for use in got.report.segments] == [None, None]
    assert [use.tier for use in again.report.segments] == ["host", "host"]
    assert torch.equal(got.first_logprobs, want.first_logprobs) and got.nll == want.nll
