"""The experts' kernel equals a float64 loop over pairs.

Tolerances, relative Frobenius: 1e-5 in float32, whose sums differ only by their order; 1e-2 in bfloat16, whose
roundings of h, of each choice and of the result are 2^-9 each (dropping the least of eight choices moves it by 0.19).
"""

import os
from typing import Any

import pytest
import torch
from hypic_kernels import experts_reference as reference
from torch import Tensor

kernel: Any = pytest.importorskip("hypic_kernels.experts", reason="Triton is not installed")

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="on a CPU kernels need TRITON_INTERPRET=1"
)

CASES = {  # rows, choices, experts, I, hidden; neither I nor hidden a power of two, and different
    "one row": (1, 2, 4, 48, 80),
    "one choice": (5, 1, 3, 16, 48),
    "few rows an expert": (11, 4, 6, 48, 112),
    "some experts beyond 16 rows": (40, 4, 6, 32, 80),
    "some experts beyond 64 rows": (100, 2, 3, 16, 48),
}
REAL = (192, 8, 256, 512, 2048)
TILES = {
    "default tiles": None,
    "several steps and outputs": kernel.Tiles(kernel.Tile(16, 16, 4, 3), kernel.Tile(16, 16, 4, 3), 32),
    "one step": kernel.Tiles(kernel.Tile(64, 128, 4, 3), kernel.Tile(32, 64, 4, 3), 64),
}


def inputs(n: int, k: int, n_experts: int, inner: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator(DEVICE).manual_seed(n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE)

    favour = torch.arange(n_experts, device=DEVICE) * -3.0 / n_experts  # experts of many rows and of none
    weights, index = (normal(n, n_experts) + favour).softmax(-1).topk(k)
    gate_up = normal(n_experts, 2 * inner, hidden) * hidden**-0.5
    down = normal(n_experts, hidden, inner) * inner**-0.5
    return normal(n, hidden).to(dtype), index, weights.to(dtype), gate_up.to(dtype), down.to(dtype)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch starts as NaN (integers: as places far away)."""

    def filled(*shape: int, **options: object) -> Tensor:
        t = torch.zeros(*shape, **options)  # type: ignore[call-overload]
        return t.fill_(float("nan") if t.is_floating_point() else 1 << 20)

    monkeypatch.setattr(kernel.torch, "empty", filled)


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_it_equals_the_loop_over_pairs(sizes: tuple[int, ...]) -> None:
    case = inputs(*sizes, torch.float32)
    assert error(kernel.experts(*case), reference.experts(*case)) < 1e-5


@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_blocks_of_any_size_give_the_same(tiles: Any) -> None:
    case = inputs(20, 2, 3, 64, 128, torch.float32)  # 18, 16 and 6 rows
    assert error(kernel.experts(*case, tiles=tiles), reference.experts(*case)) < 1e-5


@pytest.mark.parametrize("n", [8, 9, 32, 33])
def test_all_rows_may_choose_one_expert(n: int) -> None:
    x, index, weights, gate_up, down = inputs(n, 2, 4, 16, 48, torch.float32)
    index.fill_(2)  # even twice: 16, 18, 64 and 66 pairs
    expected = reference.experts(x, index, weights, gate_up, down)
    assert error(kernel.experts(x, index, weights, gate_up, down), expected) < 1e-5


@pytest.mark.parametrize("real", [0, 1, 20, 23])
def test_padding_rows_are_zero_and_touch_no_expert(real: int) -> None:
    x, index, weights, gate_up, down = inputs(23, 3, 6, 32, 48, torch.float32)
    n_rows = torch.tensor([real], dtype=torch.int32, device=DEVICE)
    x[real:], index[real:], weights[real:] = float("nan"), 5, float("nan")
    if not (index[:real] == 5).any():
        gate_up[5], down[5] = float("nan"), float("nan")
    found = kernel.experts(x, index, weights, gate_up, down, n_rows)
    expected = reference.experts(x, index, weights, gate_up, down, n_rows)
    assert torch.equal(found[real:], torch.zeros_like(found[real:]))
    assert (found[:real].double() - expected[:real]).norm() <= 1e-5 * expected[:real].norm()


def test_choices_that_name_no_expert_add_nothing() -> None:
    x, index, weights, gate_up, down = inputs(11, 3, 6, 32, 48, torch.float32)
    index[::2, 1], index[1, 0], index[4] = 6, -1, 9
    expected = reference.experts(x, index, weights, gate_up, down)
    assert error(kernel.experts(x, index, weights, gate_up, down), expected) < 1e-5


def test_equal_inputs_give_equal_bits() -> None:
    case = inputs(20, 3, 4, 32, 48, torch.float32)
    assert torch.equal(kernel.experts(*case), kernel.experts(*case))


def test_errors_name_both_values() -> None:
    x, index, weights, gate_up, down = inputs(5, 2, 4, 16, 48, torch.float32)
    with pytest.raises(ValueError, match=r"\(4, 32, 48\) and down \(4, 16, 48\)"):
        kernel.experts(x, index, weights, gate_up, down.mT.contiguous())
    with pytest.raises(ValueError, match=r"index is \(4, 2\)"):
        kernel.experts(x, index[:4], weights, gate_up, down)
    with pytest.raises(ValueError, match=r"torch\.bfloat16"):
        kernel.experts(x.bfloat16(), index, weights, gate_up, down)
    with pytest.raises(ValueError, match="I is 8"):
        kernel.experts(x, index, weights, gate_up[:, :16].contiguous(), down[..., :8].contiguous())


@pytest.mark.skipif(DEVICE != "cuda", reason="bfloat16 products are wrong in Triton's interpreter")
@pytest.mark.parametrize("sizes", [*CASES.values(), REAL], ids=[*CASES, "Qwen3.5-35B-A3B"])
def test_bfloat16(sizes: tuple[int, ...]) -> None:
    case = inputs(*sizes, torch.bfloat16)
    assert error(kernel.experts(*case), reference.experts(*case)) < 1e-2
