"""What a Gated DeltaNet layer's recurrence reads, from its projections: one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.convolution import convolved, write_tail
from hypic_kernels.plan import LinearPlan


def prepare(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    plan: LinearPlan,
    tails: Tensor,
    n_k_heads: int,
    n_v_heads: int,
    k_dim: int,
    v_dim: int,
    strength: float,
    qk_dtype: torch.dtype = torch.float32,
    heads: int = 4,
    num_warps: int = 4,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The convolution and SiLU of qkv; q and k at unit length, q scaled by ``k_dim ** -0.5``; decays and strengths.

    qkv: (N, C), its channels q, k, v, head by head; a, b: (N, Hv); rows of any stride. weight: (C, k), see
    convolution.convolve; bias: (C,). A_log, dt_bias: (Hv,). tails: (n_slots, k - 1, C), read and written as there.
    strength: of the strongest write, 1 or 2.

    Returns q, k (N, Hk, K) in qk_dtype, v (N, Hv, V) in qkv's dtype, log_decay and beta (N, Hv) float32. Rounding is
    Hugging Face's: the convolution's output has the model's dtype, so v loses nothing in it, but q and k are
    normalized in float32 and stay there unless asked otherwise; the sigmoid has the dtype of b.
    Oracle: gdn_reference.prepare.
    """
    n, channels = qkv.shape
    assert channels == 2 * n_k_heads * k_dim + n_v_heads * v_dim, (channels, n_k_heads, k_dim, n_v_heads, v_dim)
    assert qkv.stride(1) == a.stride(1) == b.stride(1) == 1 and tails.is_contiguous()
    q, k = (torch.empty(n, n_k_heads, k_dim, dtype=qk_dtype, device=qkv.device) for _ in "qk")
    v = torch.empty(n, n_v_heads, v_dim, dtype=qkv.dtype, device=qkv.device)
    log_decay, beta = (torch.empty(n, n_v_heads, device=qkv.device) for _ in "gb")
    grid = (n + len(plan.end), 2 * triton.cdiv(n_k_heads, heads) + triton.cdiv(n_v_heads, heads))
    _prepare[grid](
        qkv,
        a,
        b,
        weight,
        bias,
        A_log,
        dt_bias,
        tails,
        q,
        k,
        v,
        log_decay,
        beta,
        plan.reach,
        plan.back,
        plan.end,
        plan.tail_to,
        n,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        *weight.stride(),
        n_k_heads,
        n_v_heads,
        k_dim**-0.5,
        float(strength),
        K=k_dim,
        V=v_dim,
        BK=triton.next_power_of_2(k_dim),
        BV=triton.next_power_of_2(v_dim),
        KERNEL=weight.shape[1],
        HEADS=heads,
        num_warps=num_warps,
    )
    return q, k, v, log_decay, beta


@triton.jit
def _prepare(
    x,
    a,
    b,
    weight,
    bias,
    A_log,
    dt_bias,
    tails,
    q,
    k,
    v,
    log_decay,
    beta,
    reach,
    back,
    end,
    tail_to,
    n,
    x_row,
    a_row,
    b_row,
    w_channel,
    w_tap,
    n_k_heads,
    n_v_heads,
    scale,
    strength,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    KERNEL: tl.constexpr,
    HEADS: tl.constexpr,
):
    i = tl.program_id(0)  # row
    part = tl.program_id(1)  # some heads of q, then of k, then of v
    k_parts = tl.cdiv(n_k_heads, HEADS)
    n_channels = 2 * n_k_heads * K + n_v_heads * V
    if part < 2 * k_parts:
        is_k = part // k_parts
        heads = (part % k_parts) * HEADS + tl.arange(0, HEADS)
        places = heads[:, None] * K + tl.arange(0, BK)[None, :]
        mask = (heads < n_k_heads)[:, None] & (tl.arange(0, BK) < K)[None, :]
        channels = is_k * n_k_heads * K + places
        if i >= n:
            write_tail(x, tails, i, n, reach, back, end, tail_to, channels, mask, x_row, n_channels, KERNEL)
        else:
            y = convolved(
                x,
                weight,
                bias,
                tails,
                i,
                reach,
                back,
                channels,
                mask,
                x_row,
                n_channels,
                w_channel,
                w_tap,
                KERNEL,
                True,
            )
            y = y.to(x.dtype.element_ty).to(tl.float32)
            y *= tl.rsqrt(tl.sum(y * y, axis=1) + 1e-6)[:, None]
            row = i.to(tl.int64) * n_k_heads * K
            if is_k == 0:
                tl.store(q + row + places, y * scale, mask=mask)
            else:
                tl.store(k + row + places, y, mask=mask)
    else:
        v_heads = (part - 2 * k_parts) * HEADS + tl.arange(0, HEADS)
        v_places = v_heads[:, None] * V + tl.arange(0, BV)[None, :]
        there = v_heads < n_v_heads
        v_mask = there[:, None] & (tl.arange(0, BV) < V)[None, :]
        v_channels = 2 * n_k_heads * K + v_places
        if i >= n:
            write_tail(x, tails, i, n, reach, back, end, tail_to, v_channels, v_mask, x_row, n_channels, KERNEL)
        else:
            at = i.to(tl.int64)
            rate = tl.load(A_log + v_heads, mask=there, other=0.0).to(tl.float32)
            time = tl.load(a + at * a_row + v_heads, mask=there, other=0.0).to(tl.float32)
            time += tl.load(dt_bias + v_heads, mask=there, other=0.0).to(tl.float32)
            tl.store(log_decay + at * n_v_heads + v_heads, -tl.exp(rate) * _softplus(time), mask=there)
            gate = tl.load(b + at * b_row + v_heads, mask=there, other=0.0).to(tl.float32)
            gate = tl.sigmoid(gate).to(b.dtype.element_ty).to(tl.float32)
            tl.store(beta + at * n_v_heads + v_heads, strength * gate, mask=there)
            y = convolved(
                x, weight, bias, tails, i, reach, back, v_channels, v_mask, x_row, n_channels, w_channel, w_tap, KERNEL,
                True,
            )  # fmt: skip
            tl.store(v + at * n_v_heads * V + v_places, y.to(v.dtype.element_ty), mask=v_mask)


@triton.jit
def _softplus(x):
    """``log(1 + e^x) = max(x, 0) + log(1 + u)``, u = e^-|x|; log(1 + u) as ``2 artanh(u / (2 + u))``, whose series
    keeps the small values that ``1 + u`` rounds away, which decays of long half-life are made of."""
    u = tl.exp(-tl.abs(x))
    s = u / (2.0 + u)  # at most 1/3
    s2 = s * s
    series = 1.0 / 15.0
    for odd in tl.static_range(13, 0, -2):
        series = series * s2 + 1.0 / odd
    return tl.maximum(x, 0.0) + 2.0 * s * series
