"""The recurrence kernel over passes of several sequences, against its reference in float64."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU Triton needs TRITON_INTERPRET=1", allow_module_level=True)

from hypic_kernels import scan_reference  # noqa: E402
from hypic_kernels.scan import scan  # noqa: E402
from linear_plans import ADD, EXACT, LAST_STATE, NONE, Sequence, linear_plan, random_pass, rel_err  # noqa: E402

N_SLOTS, PADDING = 9, 3
SEQUENCES = [
    Sequence(((2, 3, EXACT), (0, 4, EXACT), (1, NONE, EXACT), (3, NONE, EXACT)), NONE, 0),
    Sequence(((3, 4, LAST_STATE), (2, 5, ADD), (2, NONE, EXACT)), 6, 1),
    Sequence(((1, NONE, EXACT),), 2, 2),  # decoding, in place
    Sequence(((2, 3, EXACT),), 5, 7),  # ends in a splice
    Sequence(((0, 5, EXACT),), NONE, 8),  # no rows
]
ONE_ROW = [Sequence(((1, NONE, EXACT),), s, s) for s in range(3)]
CASES = {  # Hq, Hk, H, K, V, delta, decay a channel, form, sequences; K != V, or a transposed state passes
    "GDN": (2, 2, 4, 16, 24, True, False, "dense", SEQUENCES),
    "KDA": (1, 1, 1, 32, 16, True, True, "dense", SEQUENCES),
    "K no power of two": (2, 2, 2, 24, 40, True, False, "dense", SEQUENCES),
    "GLA": (2, 2, 2, 16, 24, False, True, "diagonal", SEQUENCES),
    "Mamba-2": (1, 4, 4, 16, 24, False, False, "scalar", SEQUENCES),
    "Mamba-1": (1, 1, 5, 16, 1, False, True, "steps", SEQUENCES),
    "RetNet": (1, 2, 2, 16, 24, False, False, "length", SEQUENCES),
    "decoding": (1, 1, 2, 16, 24, True, False, "none", ONE_ROW),
}
if DEVICE == "cuda":
    LONG = [Sequence((*[(8, slot, EXACT) for slot in range(2, 6)], (20, NONE, EXACT)), NONE, 0), *ONE_ROW[1:2]]
    CASES["real size"] = (16, 16, 32, 128, 128, True, False, "dense", LONG)
    CASES["KDA, real size"] = (32, 32, 32, 128, 128, True, True, "dense", LONG)
    CASES["Mamba-2, real size"] = (1, 128, 128, 128, 64, False, False, "scalar", LONG)
    CASES["Mamba-1, real size"] = (1, 8192, 8192, 16, 1, False, True, "steps", LONG)
    CASES["Lightning, real size"] = (64, 64, 64, 128, 128, False, False, "length", LONG)


@pytest.mark.parametrize("case", CASES)
def test_scan_equals_the_reference(case):
    *sizes, sequences = CASES[case]
    torch.manual_seed(1)
    plan, n = linear_plan(sequences, rows=PADDING, padding=2, device=DEVICE)
    q, k, v, log_decay, beta, S, T, at, rates = random_pass(*sizes, n, N_SLOTS, DEVICE)
    q[n - PADDING :], k[n - PADDING :], v[n - PADDING :] = (float("nan"),) * 3
    expected, after = scan_reference.scan(q, k, v, log_decay, beta, plan, S, T, at, sizes[-1], rates)
    if sequences is SEQUENCES:
        S[[0, 1, 7, 8]] = float("nan")  # written, and not read
    out = scan(q, k, v, log_decay, beta, plan, S, T, at, sizes[-1], torch.float32, rates, tile=16)
    assert not out[n - PADDING :].any()
    assert rel_err(out, expected) < 1e-6
    assert rel_err(S, after) < 1e-6


@pytest.mark.skipif(DEVICE == "cpu", reason="bfloat16 values are wrong in Triton's interpreter")
def test_values_and_outputs_in_bfloat16():
    torch.manual_seed(0)
    *sizes, sequences = CASES["real size"]
    plan, n = linear_plan(sequences, device=DEVICE)
    q, k, v, log_decay, beta, S, T, at, _ = random_pass(*sizes, n, N_SLOTS, DEVICE)
    v = v.bfloat16()
    expected, after = scan_reference.scan(q, k, v, log_decay, beta, plan, S, T, at, "dense")
    out = scan(q, k, v, log_decay, beta, plan, S, T, at, "dense", torch.bfloat16)
    assert rel_err(out, expected) < 4e-3  # one rounding, of the output
    assert rel_err(S, after) < 1e-6


FAMILIES = {"gdn": "GDN", "kda": "KDA", "gla": "GLA", "mamba2": "Mamba-2", "mamba1": "Mamba-1", "retnet": "RetNet"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_equals_the_family(family):
    from importlib import import_module

    from hypic_rag.engine.families.inputs import RecurrenceInputs
    from hypic_rag.engine.families.step import run_tokens

    *sizes, _ = CASES[FAMILIES[family]]
    plan, n = linear_plan([Sequence(((5, NONE, EXACT), (4, NONE, EXACT)), 1, 0)], device=DEVICE)
    torch.manual_seed(0)
    q, k, v, log_decay, beta, S, T, at, rates = random_pass(*sizes, n, N_SLOTS, DEVICE)
    out, after = scan_reference.scan(q, k, v, log_decay, beta, plan, S, T, at, sizes[-1], rates)
    q, k = (t.repeat_interleave(v.shape[1] // t.shape[1], dim=1) for t in (q, k))
    rows = RecurrenceInputs(q, k, v, log_decay, beta).to(torch.float64)
    FAMILY = import_module(f"hypic_rag.engine.families.{family}").FAMILY
    expected, R = run_tokens(FAMILY, rows, S[1].double())
    assert rel_err(out, expected) < 1e-12 and rel_err(after[0], R) < 1e-12
