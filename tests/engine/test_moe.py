"""Experts through transformers' registry give the eager model's logits, by transformers' product and by our kernel."""

import os
import sys
from importlib import reload
from typing import Any

import pytest
import tiny
import torch

from hypic_rag.engine import moe

TOKENS = torch.arange(3, 40)[None]


def logits(implementation: str) -> torch.Tensor:
    model: Any = tiny.build("qwen3_5_moe_text", vocab_size=64)
    model.set_experts_implementation(implementation)
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS, use_cache=False).logits
    return found


def assert_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_on_a_cpu_they_equal_the_eager_model() -> None:
    assert_alike(logits(moe.IMPLEMENTATION), logits("eager"))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="on a CPU kernels need TRITON_INTERPRET=1")
def test_the_kernel_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pytest.importorskip("hypic_kernels.experts", reason="Triton is not installed")
    calls = []
    original = kernel.experts
    monkeypatch.setattr(kernel, "experts", lambda *given: calls.append(given) or original(*given))
    monkeypatch.setattr(moe, "KERNEL_DEVICE", "cpu")
    assert_alike(logits(moe.IMPLEMENTATION), logits("eager"))
    assert len(calls) == tiny.SIZES["num_hidden_layers"]


@pytest.mark.parametrize(
    "name, value",
    [("has_bias", True), ("is_transposed", True), ("is_concatenated", False), ("act_fn", torch.nn.GELU())],
)
def test_other_forms_of_experts_are_left_to_transformers(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe, "KERNEL_DEVICE", "cpu")
    module = tiny.build("qwen3_5_moe_text", vocab_size=64).model.layers[0].mlp.experts
    x, index = torch.zeros(3, module.hidden_dim), torch.zeros(3, 2, dtype=torch.int64)
    with torch.no_grad():
        assert moe._suits_kernel(module, x, index)
        assert not moe._suits_kernel(module, x.new_zeros(513, module.hidden_dim), index)
        setattr(module, name, value)
        assert not moe._suits_kernel(module, x, index)


def test_without_a_gpu_no_kernel_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypic_kernels", None)  # to import it is an error
    monkeypatch.setitem(sys.modules, "hypic_kernels.experts", None)
    reload(moe)
    logits(moe.IMPLEMENTATION)
