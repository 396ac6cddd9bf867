"""The router's kernel equals a stable sort of the probabilities."""

import os
from typing import Any

import pytest
import torch
from hypic_kernels import router_reference as reference

kernel: Any = pytest.importorskip("hypic_kernels.router", reason="Triton is not installed")

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="on a CPU kernels need TRITON_INTERPRET=1"
)

CASES = {  # rows, experts, choices
    "one row": (1, 8, 2),
    "one choice": (7, 5, 1),
    "every expert": (3, 6, 6),
    "experts no power of two": (11, 60, 5),
    "Qwen3.5-35B-A3B": (9, 256, 8),
}


HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cuts bfloat16 instead of rounding it


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("n, n_experts, k", CASES.values(), ids=CASES)
def test_it_equals_the_sort(n: int, n_experts: int, k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    logits = torch.randn(n, 2 * n_experts, generator=generator, device=DEVICE).to(dtype)[:, :n_experts]
    index, weights = kernel.route(logits, k)
    expected_index, expected_weights = reference.route(logits, k)
    assert index.dtype == torch.int64 and weights.dtype == dtype
    assert torch.equal(index, expected_index)
    # one rounding apart where exp differs in its last bits
    step = max(1e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(weights, expected_weights, rtol=step, atol=0)


def test_of_equals_the_lower_index_comes_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0], [0.0] * 6], device=DEVICE)
    index, weights = kernel.route(logits, 4)
    assert index.tolist() == [[1, 2, 4, 3], [0, 1, 2, 3]]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, device=DEVICE))


def test_experts_of_no_probability_are_taken_once() -> None:
    logits = torch.full((1, 6), float("-inf"), device=DEVICE)
    logits[0, 4] = 1.0
    index, weights = kernel.route(logits, 3)
    assert index.tolist() == [[4, 0, 1]] and weights.tolist() == [[1.0, 0.0, 0.0]]


def test_it_refuses_more_choices_than_experts() -> None:
    with pytest.raises(ValueError, match="k is 9, but there are 8 experts"):
        kernel.route(torch.zeros(1, 8, device=DEVICE), 9)
