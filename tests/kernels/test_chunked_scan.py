"""The recurrence by folded runs, against the row by row reference in float64."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU Triton needs TRITON_INTERPRET=1", allow_module_level=True)

from hypic_kernels import scan_reference  # noqa: E402
from hypic_kernels.chunked_scan import CHUNK, chunked_scan  # noqa: E402
from linear_plans import ADD, EXACT, LAST_STATE, NONE, Sequence, linear_plan, random_pass, rel_err  # noqa: E402

N_SLOTS, PADDING = 9, 3
SEQUENCES = [
    Sequence(((2, 3, EXACT), (0, 4, EXACT), (1, NONE, EXACT), (3, NONE, EXACT)), NONE, 0),
    Sequence(((3, 4, LAST_STATE), (2, 5, ADD), (CHUNK, NONE, EXACT)), 6, 1),
    Sequence(((1, NONE, EXACT),), 2, 2),  # in place
    Sequence(((2, 3, EXACT),), 5, 7),  # ends in a splice
    Sequence(((CHUNK, NONE, EXACT), (5, 3, EXACT)), NONE, 8),  # a seam of two runs
]
CASES = {  # Hq, Hk, H, K, V; K != V, or a transposed state passes
    "grouped": (1, 1, 2, 32, 24),
    "K no power of two": (1, 2, 2, 24, 40),
    "K of half a width": (1, 1, 1, 16, 16),
}
if DEVICE == "cuda":
    CASES["real size"] = (16, 16, 32, 128, 128)

RUNS = [(case, precision) for case in CASES for precision in ("split", "ieee")]
if DEVICE == "cpu":
    RUNS = [*((case, "split") for case in CASES), ("K of half a width", "ieee")]


@pytest.mark.parametrize("case, precision", RUNS)
def test_chunked_scan_equals_the_reference(case, precision):
    torch.manual_seed(1)
    plan, n = linear_plan(SEQUENCES, rows=PADDING, padding=2, device=DEVICE)
    q, k, v, log_decay, beta, S, T, at, _ = random_pass(*CASES[case], True, False, "dense", n, N_SLOTS, DEVICE)
    q[n - PADDING :], k[n - PADDING :], v[n - PADDING :] = (float("nan"),) * 3
    expected, after = scan_reference.scan(q, k, v, log_decay, beta, plan, S, T, at, "dense")
    S[[0, 1, 7, 8]] = float("nan")  # written, and not read
    args = (q, k, v, log_decay, beta, plan, S, T, at, torch.float32)
    out = chunked_scan(*args, block_v=16, precision=precision)
    assert not out[n - PADDING :].any()
    assert rel_err(out, expected) < 1e-6
    assert rel_err(S, after) < 1e-6


def test_equal_keys_and_full_strength():
    """The system of a run is then all ones, whose powers grow: only substitution stays exact."""
    torch.manual_seed(0)
    plan, n = linear_plan([Sequence(((CHUNK, NONE, EXACT),) * 2, 2, 0)], device=DEVICE)
    q, k, v, log_decay, beta, S, T, at, _ = random_pass(1, 1, 1, 32, 16, True, False, "dense", n, 50, DEVICE)
    k[:] = k[0]
    beta.fill_(1)
    log_decay.zero_()
    expected, after = scan_reference.scan(q, k, v, log_decay, beta, plan, S, T, at, "dense")
    out = chunked_scan(q, k, v, log_decay, beta, plan, S, T, at, torch.float32, block_v=16)
    assert rel_err(out, expected) < 1e-6
    assert rel_err(S, after) < 1e-6
