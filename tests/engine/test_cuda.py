"""The same engine on a GPU, where there is one: against the CPU in float32, and bfloat16 within its rounding."""

import pytest
import tiny
import torch

from hypic_rag import Policy, Sampling, SegmentCache, SegmentEngine
from hypic_rag.prompt import Prompt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

PROMPT = Prompt.build(tiny.ids(20, 1), [tiny.ids(n, n) for n in (150, 7, 40)], tiny.ids(13, 2))


def on_gpu(kind: str, dtype: torch.dtype, cache: SegmentCache | None = None) -> SegmentEngine:
    model = tiny.build(kind, "hypic").to("cuda", dtype)
    return SegmentEngine(model, tiny.tokenizer(), name=kind, fingerprint=f"{kind}-{dtype}", cache=cache)


@pytest.mark.parametrize("policy", [Policy(), Policy("full"), Policy(compose="add")], ids=["hypic", "full", "add"])
def test_gpu_equals_cpu(engine: SegmentEngine, kind: str, policy: Policy) -> None:
    gpu = on_gpu(kind, torch.float32)
    a, b = (e.score(PROMPT, (5, 6, 7), policy) for e in (engine, gpu))
    assert (a.first_logprobs - b.first_logprobs).abs().max() < 1e-3
    ours, theirs = (e.generate(PROMPT, Sampling(max_new_tokens=12), policy).token_ids for e in (engine, gpu))
    assert ours == theirs


def test_bfloat16_stays_near(engine: SegmentEngine, kind: str) -> None:
    """KL to float32 under 0.15 (a rounded router may send a row to another expert: 0.07 seen); between policies it
    is over 0.5 on these models."""
    a = engine.score(PROMPT, (5,)).first_logprobs.double()
    b = on_gpu(kind, torch.bfloat16).score(PROMPT, (5,)).first_logprobs.double()
    other = engine.score(PROMPT, (5,), Policy(compose="add")).first_logprobs.double()
    assert (a.exp() * (a - b)).sum() < 0.15
    assert (a.exp() * (a - other)).sum() > 0.5


def test_cold_equals_warm_on_gpu() -> None:
    gpu = on_gpu("qwen3_5_text", torch.bfloat16)
    cold, warm = gpu.score(PROMPT, (5,)), gpu.score(PROMPT, (5,))
    assert torch.equal(cold.first_logprobs, warm.first_logprobs)
