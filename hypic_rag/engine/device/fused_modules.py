"""Norms and routers in one launch each: Hugging Face's take six, and a pass of few rows is made of launches."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swap(model: Any) -> int:
    """Give the norms and routers of a model on a GPU our kernels' forward, where it gives their numbers. Returns how
    many."""
    swapped = 0
    forward: Callable[..., Any] | None
    for module in model.modules():
        name = type(module).__name__
        if type(module).__module__.startswith("fla."):  # kernels already, and called with a residual
            continue
        if name.endswith("RMSNormGated"):
            forward, n_inputs = _gated(module), 2
        elif "RMSNorm" in name:
            forward, n_inputs = _plain(module), 1
        elif name.endswith("TopKRouter"):
            forward, n_inputs = _router(module), 1
        else:
            continue
        if forward is not None and _is_the_same(module, forward, n_inputs):
            module.forward = MethodType(forward, module)
            swapped += 1
    return swapped


def _plain(module: Any) -> Callable[..., Tensor] | None:
    from hypic_kernels.norms import rms_norm

    eps, weight = _eps(module), getattr(module, "weight", None)
    if eps is None or weight is None or weight.dim() != 1:
        return None
    one_plus = _is_zero_centred(module, eps)

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return rms_norm(rows, self.weight, eps, one_plus).view(hidden_states.shape)

    return forward


def _gated(module: Any) -> Callable[..., Tensor] | None:
    from hypic_kernels.norms import gated_rms_norm

    eps = _eps(module)
    if eps is None:
        return None

    def forward(self: Any, hidden_states: Tensor, gate: Tensor) -> Tensor:
        width = hidden_states.shape[-1]
        rows = gated_rms_norm(hidden_states.reshape(-1, width), gate.reshape(-1, width), self.weight, eps)
        return rows.view(hidden_states.shape)

    return forward


def _router(module: Any) -> Callable[..., tuple[Tensor, ...]] | None:
    """Return a forward for a router of softmax, the largest k, and their sum made one
    (Qwen3.5's); None for another module."""
    from hypic_kernels.router import route

    if not hasattr(module, "top_k") or getattr(module, "weight", None) is None:
        return None

    def forward(self: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
        logits = F.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), self.weight)
        index, weights = route(logits, self.top_k)
        return logits, weights, index

    return forward


def _eps(module: Any) -> float | None:
    found = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    return None if found is None else float(found)


@torch.inference_mode()
def _is_zero_centred(module: Any, eps: float) -> bool:
    """Return whether it multiplies by ``1 + weight``: of a row of ones the norm is the factor itself."""
    row = torch.ones(1, module.weight.shape[0], dtype=module.weight.dtype, device=module.weight.device)
    factor = module(row)[0].float() * (1 + eps) ** 0.5
    weight = module.weight.float()
    return bool((factor - 1 - weight).abs().sum() < (factor - weight).abs().sum())


@torch.inference_mode()
def _is_the_same(module: Any, forward: Callable[..., Any], n_inputs: int) -> bool:
    """Compare with the original on random rows, to two roundings of the model's type; whole numbers must be equal."""
    weight = module.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    shape = 4, weight.shape[-1]
    rows = [torch.randn(shape, generator=generator, device=weight.device, dtype=weight.dtype) for _ in range(n_inputs)]
    try:
        theirs, ours = module(*rows), forward(module, *rows)
    except (TypeError, ValueError, RuntimeError):  # a forward of other arguments, or sizes that the kernel refuses
        return False
    pairs = list(zip(theirs, ours, strict=False)) if isinstance(theirs, tuple) else [(theirs, ours)]
    eps = torch.finfo(weight.dtype).eps
    return all(
        a.shape == b.shape and a.dtype == b.dtype
        and bool(((a.float() - b.float()).abs() <= (2 * eps * a.float().abs() + 1e-6) * a.is_floating_point()).all())
        for a, b in pairs
    )  # fmt: skip
