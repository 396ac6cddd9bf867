"""The convolution kernel against its reference, and the reference against the engine's convolution."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU Triton needs TRITON_INTERPRET=1", allow_module_level=True)

from hypic_kernels import convolution_reference  # noqa: E402
from hypic_kernels.convolution import convolve  # noqa: E402
from linear_plans import ADD, EXACT, LAST_STATE, NONE, Sequence, linear_plan, rel_err  # noqa: E402

SEQUENCES = [
    Sequence(((2, 3, EXACT), (0, 4, LAST_STATE), (1, NONE, ADD), (5, NONE, EXACT)), NONE, 0),
    Sequence(((1, NONE, EXACT),), 5, 1),
    Sequence(((2, NONE, EXACT),), NONE, 2),
    Sequence(((4, 6, EXACT),), 7, 8),  # ends in a splice: its tail is the interior's
]
CASES = {  # channels, k, bias, silu, dtype
    "four taps": (40, 4, None, True, torch.float32),
    "a bias": (33, 4, 1, True, torch.float32),
    "three taps, linear": (16, 3, 1, False, torch.float32),
    "two taps": (5, 2, None, False, torch.float32),
}
if DEVICE == "cuda":
    CASES["real size"] = (8192, 4, None, True, torch.bfloat16)


@pytest.mark.parametrize("channels, kernel, bias, silu, dtype", CASES.values(), ids=CASES)
def test_convolve_equals_the_reference(channels, kernel, bias, silu, dtype):
    torch.manual_seed(0)
    plan, n = linear_plan(SEQUENCES, kernel, rows=3, padding=2, device=DEVICE)
    wide = torch.randn(n, channels + 7, device=DEVICE).to(dtype)
    x = wide[:, :channels]  # rows of a wider projection
    tails = torch.randn(9, kernel - 1, channels, device=DEVICE).to(dtype)
    weight = torch.randn(channels, kernel, device=DEVICE).to(dtype)
    bias = None if bias is None else torch.randn(channels, device=DEVICE).to(dtype)
    expected, after = convolution_reference.convolve(x, weight, bias, silu, plan, tails)
    tails[[0, 1, 2, 8]] = float("nan")  # where the new tails go, and nowhere else
    out = convolve(x, weight, bias, silu, plan, tails, block=16 if DEVICE == "cpu" else 1024)
    assert out.dtype == dtype
    # In bfloat16 the only rounding is the output's, half a unit of 2^-8.
    assert rel_err(out[: n - 3], expected[: n - 3]) < (1e-6 if dtype == torch.float32 else 4e-3)
    assert torch.equal(tails, after)


def test_the_reference_equals_the_engine():
    from hypic_rag.engine import plan
    from hypic_rag.engine.passes import convolution

    torch.manual_seed(0)
    ours, n = linear_plan([Sequence(((2, 1, EXACT), (1, 2, EXACT), (6, NONE, EXACT)), 3, 0)])
    theirs = plan.build([[plan.RunRows(2), plan.Splice(0), plan.RunRows(1), plan.Splice(1), plan.RunRows(6)]])
    x, tails, weight = torch.randn(n, 8), torch.randn(4, 3, 8), torch.randn(8, 4)
    starts = [tails[3], tails[1], tails[2]]
    expected = convolution.convolve(x, theirs, starts, weight, None, silu=True)
    out, after = convolution_reference.convolve(x, weight, None, True, ours, tails)
    assert rel_err(out, expected) < 1e-6
    assert torch.equal(after[0], convolution.tails(x, theirs, starts)[0])
