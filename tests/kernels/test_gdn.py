"""GDN's preparation of a pass in one launch, against its reference."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU Triton needs TRITON_INTERPRET=1", allow_module_level=True)

from hypic_kernels import gdn_reference  # noqa: E402
from hypic_kernels.gdn import prepare  # noqa: E402
from linear_plans import EXACT, NONE, Sequence, linear_plan, rel_err  # noqa: E402

SEQUENCES = [
    Sequence(((2, 3, EXACT), (1, NONE, EXACT), (5, NONE, EXACT)), NONE, 0),
    Sequence(((1, NONE, EXACT),), 5, 1),
]
CASES = {  # key heads, value heads, K, V, bias, beta_scale, dtype
    "grouped": (2, 4, 16, 8, False, 1.0, torch.float32),
    "sizes that are no powers of two": (3, 3, 12, 24, True, 2.0, torch.float32),
    "more heads than a program has": (5, 10, 8, 8, False, 2.0, torch.float32),
}
if DEVICE == "cuda":
    CASES["real size"] = (16, 32, 128, 128, False, 1.0, torch.bfloat16)
    CASES["OLMo Hybrid"] = (30, 30, 96, 192, False, 2.0, torch.bfloat16)


@pytest.mark.parametrize("n_k, n_v, K, V, biased, beta_scale, dtype", CASES.values(), ids=CASES)
def test_prepare_equals_the_reference(n_k, n_v, K, V, biased, beta_scale, dtype):
    torch.manual_seed(0)
    channels = 2 * n_k * K + n_v * V
    plan, n = linear_plan(SEQUENCES, rows=2, padding=1, device=DEVICE)

    def random(*shape):
        return torch.randn(*shape, device=DEVICE).to(dtype)

    wide = random(n, channels + 2 * n_v)
    qkv, a, b = wide.split((channels, n_v, n_v), dim=1)
    a *= 6  # softplus far out on both sides
    bias = random(channels) if biased else None
    tails = random(6, 3, channels)
    A_log, dt_bias = torch.randn(n_v, device=DEVICE), random(n_v)
    args = (qkv, a, b, random(4, channels).t(), bias, A_log, dt_bias, plan, tails, n_k, n_v, K, V, beta_scale)
    expected, after = gdn_reference.prepare(*args)
    tails[:2] = float("nan")
    got = prepare(*args)
    # A value on the edge may be rounded to bfloat16 the other way: one unit, 2^-8, in few places.
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    for name, mine, reference in zip(("q", "k", "v", "log_decay", "beta"), got, expected, strict=True):
        assert mine.shape == reference.shape and mine.dtype == reference.dtype, name
        assert rel_err(mine[: n - 2], reference[: n - 2]) < tolerance, name
    tails[:2] = float("nan")
    again = prepare(*args, rows=4)  # a program, as where there are many
    for mine, reference in zip(again, expected, strict=True):
        assert rel_err(mine[: n - 2], reference[: n - 2]) < tolerance
    assert torch.equal(tails, after)
    half = prepare(*args, qk_dtype=torch.float16)  # the interpreter does not round to bfloat16
    assert all(torch.equal(mine, whole.half()) for mine, whole in zip(half[:2], got[:2], strict=True))
    decay, reference = got[3][: n - 2], expected[3][: n - 2]
    assert ((decay - reference).abs() <= 3e-6 * reference.abs()).all()  # also the smallest
    assert torch.equal(tails, after)
