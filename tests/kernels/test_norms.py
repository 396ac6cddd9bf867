"""The norms' kernels round where transformers rounds.

Points of rounding to the model's type (bfloat16; in Triton's interpreter, which cuts bfloat16 instead of rounding it,
float16): the sum with the residual; in Qwen3.5's zero-centred norm the result alone; in Llama's the normed value, then
the result; in the gated norm the normed value, its product with a weight of the same type, then the result. What is
between is float32, whose sum of squares may differ in its last bits, so that now and then a value at the border is
rounded to the other side: at most 1% of elements may differ, by one step of the type for every point of rounding, since
one that went the other way can bring the value to the border of the next (leaving out one of these points, or adding
one, changes 18 to 35%). float32: 1e-6.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypic_kernels import norms_reference as reference
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeRMSNorm, Qwen3_5MoeRMSNormGated

kernel: Any = pytest.importorskip("hypic_kernels.norms", reason="Triton is not installed")

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="on a CPU kernels need TRITON_INTERPRET=1"
)

CASES = {  # rows, D
    "one row": (1, 48),
    "a head": (67, 128),
    "D no power of two": (5, 1500),
    "a row longer than a program's usual share": (3, 4096),
}
if DEVICE == "cuda":
    CASES |= {"hidden": (192, 2048), "heads": (192 * 32, 128)}
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
TYPES = {"float32": (torch.float32, torch.float32), "half": (HALF, HALF), "wide weight": (HALF, torch.float32)}
EPS = 1e-6


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)


def assert_rounded_alike(found: Tensor, expected: Tensor, roundings: int) -> None:
    assert found.dtype == expected.dtype
    if found.dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        return
    torch.testing.assert_close(found, expected, rtol=roundings * torch.finfo(found.dtype).eps, atol=1e-7)
    assert (found != expected).float().mean() <= 0.01


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("n, dim", CASES.values(), ids=CASES)
@pytest.mark.parametrize("one_plus", [True, False], ids=["one plus", "plain"])
def test_rms_norm(one_plus: bool, n: int, dim: int, types: tuple[torch.dtype, ...]) -> None:
    x, weight = normal(1, n, dim + 5).to(types[0])[:, :dim] * 3, normal(2, dim).to(types[1])
    found, expected = (norm.rms_norm(x, weight, EPS, one_plus) for norm in (kernel, reference))
    assert_rounded_alike(found, expected, roundings=1 if one_plus else 2)


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("n, dim", CASES.values(), ids=CASES)
def test_add_rms_norm(n: int, dim: int, types: tuple[torch.dtype, ...]) -> None:
    x, residual = normal(1, n, dim + 5).to(types[0])[:, :dim], normal(2, n, dim + 3).to(types[0])[:, :dim] * 3
    weight = normal(3, dim).to(types[1])
    found, total = kernel.add_rms_norm(x, residual, weight, EPS, True)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, EPS, True)
    assert torch.equal(total, expected_total)
    assert_rounded_alike(found, expected, roundings=1)


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("n, dim", CASES.values(), ids=CASES)
def test_gated_rms_norm(n: int, dim: int, types: tuple[torch.dtype, ...]) -> None:
    x, gate = normal(1, n, dim + 5).to(types[0])[:, :dim], normal(2, n, dim + 3).to(types[0])[:, :dim] * 3
    weight = normal(3, dim).to(types[1])
    found, expected = (norm.gated_rms_norm(x, gate, weight, EPS) for norm in (kernel, reference))
    assert_rounded_alike(found, expected, roundings=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "module, ours",
    [
        (Qwen3_5MoeRMSNorm, lambda x, w: reference.rms_norm(x, w, EPS, True)),
        (LlamaRMSNorm, lambda x, w: reference.rms_norm(x, w, EPS, False)),
        (Qwen3_5MoeRMSNormGated, lambda x, w: reference.gated_rms_norm(x, x.flip(0), w, EPS)),
    ],
    ids=["Qwen3.5", "Llama", "gated"],
)
def test_the_reference_is_transformers(
    module: type[torch.nn.Module], ours: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    x, norm = normal(1, 9, 80).to(dtype), module(80, eps=EPS).to(DEVICE, dtype)
    with torch.no_grad():
        norm.weight.copy_(normal(2, 80))
        theirs = norm(x, x.flip(0)) if module is Qwen3_5MoeRMSNormGated else norm(x)
        assert torch.equal(ours(x, norm.weight), theirs)


def test_errors_name_both_shapes() -> None:
    x = normal(1, 3, 48)
    with pytest.raises(ValueError, match=r"weight is \(47,\), but x is \(3, 48\)"):
        kernel.rms_norm(x, normal(2, 47), EPS, True)
    with pytest.raises(ValueError, match=r"residual is \(2, 48\), but x is \(3, 48\)"):
        kernel.add_rms_norm(x, x[:2], normal(2, 48), EPS, True)
    with pytest.raises(ValueError, match="gate has stride 3"):
        kernel.gated_rms_norm(x, normal(2, 48, 3).T, normal(3, 48), EPS)
