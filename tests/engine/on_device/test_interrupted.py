"""An interrupt at any line leaves nothing behind in the device's pools, and the next answers are right."""

import os
import random

import pytest
import tiny
from interrupts import Interrupter

from hypic_rag import Policy, Sampling, SegmentEngine
from hypic_rag.errors import PassInterrupted
from hypic_rag.prompt import Prompt

pytest.importorskip("triton", reason="pip install triton==3.7.1")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)

FILES = (
    *("/locks.py", "engine/engine.py", "/scheduler.py", "backends/base.py", "backends/device.py", "/session_cache.py"),
    *(
        "engine/state.py",
        "/assemble.py",
        "/segment_manager.py",
        "/sequence_slots.py",
        "device/model_runner.py",
        "device/prepare_inputs.py",
    ),
    *(
        "device/graph_bucket.py",
        "tiers/device.py",
        "tiers/transfers.py",
        "tiers/free_list.py",
        "tiers/device_tensors.py",
        "<string>",
    ),
)
SAMPLING, POLICY = Sampling(max_new_tokens=2), Policy(seam_tokens=4)
ASK, OTHER = (
    Prompt.build(tiny.ids(5, 1), [tiny.ids(n, n) for n in lengths], tiny.ids(4, 2)) for lengths in ((6, 3), ())
)
CHANGES = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_value_head_dim": 16}


def assert_whole(engine: SegmentEngine) -> None:
    """Every slot is free, an entry's, or of a held conversation."""
    pool = engine.pool
    assert pool is not None
    held = [state.slots for state in engine.conversations._held.values()]
    assert pool._leases == {one.lease for one in held}
    assert sorted(pool._pins.elements()) == sorted(digest for one in held for digest in one.pinned)
    taken = [one.slot for one in pool._residents.values()] + [slot for one in held for slot in one.lease.slots]
    assert sorted(taken + pool._free_slots) == list(range(pool._sizes[0]))
    assert pool.nbytes == sum(one.nbytes for one in (*pool._residents.values(), *held))


def run(n_interrupts: int, seed: int, n_lines: int = 4000) -> int:
    """How many of the interrupts came before the answer was there."""
    draw, n_raised = random.Random(seed), 0
    engine = tiny.engine("qwen3_5_text", CHANGES, policy=POLICY, device_memory=16 << 20)
    right = {p: engine.generate(p, SAMPLING).token_ids for p in (ASK, OTHER)}
    for _ in range(n_interrupts):
        others = engine.stream(OTHER, SAMPLING)
        next(others)
        interrupter = Interrupter(draw.choice([KeyboardInterrupt, SystemExit]), FILES, draw.randrange(n_lines))
        try:
            with interrupter.inside():
                if draw.random() < 0.3:
                    engine.forget()
                if draw.random() < 0.3:
                    engine.score(ASK, (5, 6))
                engine.generate(ASK, SAMPLING)
        except interrupter.error:
            n_raised += 1
        try:
            assert [one.generation for one in others][-1].token_ids == right[OTHER], interrupter.where
        except PassInterrupted:
            assert interrupter.where
        assert engine.generate(ASK, SAMPLING).token_ids == right[ASK], interrupter.where
        assert not engine._scheduler._requests and not engine._scheduler._unfinished, interrupter.where
        assert_whole(engine)
    return n_raised


def test_an_interrupt_leaves_nothing_in_the_pools() -> None:
    assert run(2, seed=1)
