"""RMS norms, one launch each, that round to the model's type at the same places as transformers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 2048  # of a program: a whole row, or several short ones


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    """Compute ``x / sqrt(mean(x^2) + eps)`` over the last axis, times ``1 + weight`` (one_plus) or ``weight``.

    x: (N, D), rows at any stride. weight: (D,). Computed in float32; with one_plus the result is rounded once, to x's
    type (Qwen3.5), else also before the product (Llama, Qwen3; there transformers gives the wider type where weight
    and x differ, we give x's).

    Returns (N, D) in x's type, contiguous. Raises ValueError where D differs or the last axis is not contiguous.
    Source: transformers, Qwen3_5MoeRMSNorm and LlamaRMSNorm. Oracle: norms_reference.rms_norm (test_norms.py).
    """
    _check(x, weight=weight)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, block, num_warps = _blocks(x)
    _rms_norm[(triton.cdiv(len(x), rows),)](
        x, None, None, weight, out, x.stride(0), 0, len(x), eps, x.shape[1], rows, block, one_plus, num_warps=num_warps
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool) -> tuple[Tensor, Tensor]:
    """Compute ``rms_norm`` of ``residual + x``, the sum rounded to x's type first.
    Returns (normed, sum), both (N, D)."""
    _check(x, weight=weight, residual=residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    rows, block, num_warps = _blocks(x)
    _rms_norm[(triton.cdiv(len(x), rows),)](
        x, residual, total, weight, out, x.stride(0), residual.stride(0), len(x), eps, x.shape[1], rows, block,
        one_plus, num_warps=num_warps,
    )  # fmt: skip
    return out, total


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute ``weight * x / sqrt(mean(x^2) + eps) * silu(gate)`` over the last axis.

    x, gate: (N, D), rows at any stride. weight: (D,). The normed x is rounded to x's type, its product with weight to
    the wider of the two types, silu is taken in float32, and the result is rounded to x's type.

    Returns (N, D) in x's type, contiguous. Raises ValueError where shapes differ or a last axis is not contiguous.
    Source: transformers, Qwen3_5MoeRMSNormGated. Oracle: norms_reference.gated_rms_norm (test_norms.py).
    """
    _check(x, weight=weight, gate=gate)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, block, num_warps = _blocks(x)
    wide = weight.dtype != x.dtype
    _gated_rms_norm[(triton.cdiv(len(x), rows),)](
        x, gate, weight, out, x.stride(0), gate.stride(0), len(x), eps, x.shape[1], rows, block, wide,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def _blocks(x: Tensor) -> tuple[int, int, int]:
    """Choose rows and columns of a program, and its warps."""
    block = triton.next_power_of_2(x.shape[1])
    rows = max(1, ELEMENTS // block)
    return rows, block, min(16, max(4, rows * block // 512))


def _check(x: Tensor, weight: Tensor, **others: Tensor) -> None:
    for name, other in others.items():
        if other.shape != x.shape:
            raise ValueError(f"{name} is {tuple(other.shape)}, but x is {tuple(x.shape)}: give both one shape")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight is {tuple(weight.shape)}, but x is {tuple(x.shape)}: weight must be (D,)")
    for name, tensor in {"x": x, "weight": weight, **others}.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"the last axis of {name} has stride {tensor.stride(-1)}: it must be contiguous")


@triton.jit
def _normed(x, eps, D: tl.constexpr):
    """x: (ROWS, BLOCK) float32, zero beyond D."""
    return x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]


@triton.jit
def _rms_norm(
    x,
    residual,  # may be None, then total is too
    total,
    weight,
    out,
    x_stride,
    residual_stride,
    N,
    eps,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_PLUS: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    real = (row < N) & (d < D)
    kind = out.dtype.element_ty
    value = tl.load(x + row * x_stride + d, mask=real, other=0.0).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + row * residual_stride + d, mask=real, other=0.0).to(tl.float32)
        rounded = value.to(kind)
        tl.store(total + row * D + d, rounded, mask=real)
        value = rounded.to(tl.float32)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    normed = _normed(value, eps, D)
    if ONE_PLUS:
        normed = normed * (1.0 + w)
    else:
        normed = normed.to(kind).to(tl.float32) * w
    tl.store(out + row * D + d, normed.to(kind), mask=real)


@triton.jit
def _gated_rms_norm(
    x,
    gate,
    weight,
    out,
    x_stride,
    gate_stride,
    N,
    eps,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,  # the product with weight is float32
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    real = (row < N) & (d < D)
    kind = out.dtype.element_ty
    value = tl.load(x + row * x_stride + d, mask=real, other=0.0).to(tl.float32)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_stride + d, mask=real, other=0.0).to(tl.float32)
    normed = _normed(value, eps, D).to(kind).to(tl.float32) * w
    if not WIDE:
        normed = normed.to(kind).to(tl.float32)
    tl.store(out + row * D + d, (normed * (g / (1.0 + tl.exp(-g)))).to(kind), mask=real)
