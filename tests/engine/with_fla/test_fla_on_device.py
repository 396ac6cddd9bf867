"""flash-linear-attention's models by pools and kernels, against the engine's own way in torch.

On a CPU: TRITON_INTERPRET=1 pytest tests/engine/with_fla/test_fla_on_device.py
"""

import os
from typing import Any

import cases
import pytest
import tiny
import torch

pytest.importorskip("fla", reason="pip install flash-linear-attention")
pytest.importorskip("triton", reason="pip install triton==3.7.1")
if cases.DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)

import fla_cases

from hypic_rag import Policy, SegmentEngine
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.prompt import Prompt

SEAM, TOLERANCE = 4, 2e-4
TIMES = 1 if cases.DEVICE == "cpu" else 3  # a pass, its capture as a graph, a replay
NAMES = ["gla, grouped", "kda", "gated_deltanet, hybrid", *(["delta_net"] if cases.DEVICE == "cuda" else [])]
ASK = Prompt.build(tiny.ids(5, 1), [tiny.ids(6, 6)], tiny.ids(4, 2))


def logits(engine: SegmentEngine, policy: Policy) -> torch.Tensor:
    [one] = engine.backend.start([SequenceRequest(ASK, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    made = engine.backend.run([active], [range(len(active.ids))])[0].float().cpu()
    active.state.release()
    return made


@pytest.mark.parametrize("name", NAMES)
def test_equals_torch(name: str) -> None:
    def engine(memory: int) -> Any:
        model = fla_cases.CASES[name].build("hypic", num_hidden_layers=2)
        return SegmentEngine(model, tiny.tokenizer(), name=name, fingerprint=name, device_memory=memory)

    pooled, in_torch, policy = engine(64 << 20), engine(0), Policy(seam_tokens=SEAM)
    assert pooled.pool is not None and in_torch.pool is None
    expected = logits(in_torch, policy)
    for _ in range(TIMES):
        assert (logits(pooled, policy) - expected).abs().max() < TOLERANCE
    assert (logits(in_torch, Policy(seam_tokens=SEAM, compose="last_state")) - expected).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["retnet", "rwkv7"])
@pytest.mark.filterwarnings("ignore:According to Bo")
def test_others_run_in_torch(name: str) -> None:
    model = fla_cases.CASES[name].build("hypic")
    engine = SegmentEngine(model, tiny.tokenizer(), name=name, fingerprint=name, device_memory=64 << 20)
    assert engine.pool is None
