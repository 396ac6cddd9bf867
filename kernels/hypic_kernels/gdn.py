"""What a Gated DeltaNet layer's recurrence reads, from its projections: one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.convolution import convolved, write_tail
from hypic_kernels.plan import LinearPlan

MANY = 2048  # rows, of which a program takes several
MANY_ROWS = 4


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
    beta_scale: float,
    qk_dtype: torch.dtype = torch.float32,
    rows: int | None = None,
    heads: int = 4,
    num_warps: int = 4,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Convolve qkv, with SiLU; bring q and k to unit length, scale q by
    ``k_dim ** -0.5``; compute decays and strengths.

    qkv: (N, C), its channels q, k, v, head by head; a, b: (N, Hv); rows of any stride. weight: (C, k), see
    convolution.convolve; bias: (C,). A_log, dt_bias: (Hv,). tails: (n_slots, k - 1, C), read and written as there.
    beta_scale: of the strongest write, 1 or 2. rows, heads: that a program takes; None: one row where there are few, so
    that every multiprocessor has some, and several where there are many, which share the loads of the weight.

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
    rows = rows or (MANY_ROWS if n >= MANY else 1)
    row_parts = triton.cdiv(n, rows)
    grid = (row_parts + len(plan.end), 2 * triton.cdiv(n_k_heads, heads) + triton.cdiv(n_v_heads, heads))
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
        row_parts,
        qkv.stride(0),
        a.stride(0),
        b.stride(0),
        *weight.stride(),
        n_k_heads,
        n_v_heads,
        k_dim**-0.5,
        float(beta_scale),
        K=k_dim,
        V=v_dim,
        BK=triton.next_power_of_2(k_dim),
        BV=triton.next_power_of_2(v_dim),
        KERNEL=weight.shape[1],
        ROWS=rows,
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
    row_parts,
    x_row,
    a_row,
    b_row,
    w_channel,
    w_tap,
    n_k_heads,
    n_v_heads,
    scale,
    beta_scale,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    KERNEL: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
):
    row_part = tl.program_id(0)  # some rows, or behind them a sequence's tail
    part = tl.program_id(1)  # some heads of q, then of k, then of v
    k_parts = tl.cdiv(n_k_heads, HEADS)
    n_channels = 2 * n_k_heads * K + n_v_heads * V
    is_tail = row_part >= row_parts
    virtual = n + row_part - row_parts  # the tail's row in ``reach`` and ``back``
    rows = row_part * ROWS + tl.arange(0, ROWS)
    at = rows.to(tl.int64)
    i = rows[:, None, None]
    if part < 2 * k_parts:
        is_k = part // k_parts
        heads = (part % k_parts) * HEADS + tl.arange(0, HEADS)
        places = heads[None, :, None] * K + tl.arange(0, BK)[None, None, :]
        mask = (heads < n_k_heads)[None, :, None] & (tl.arange(0, BK) < K)[None, None, :]
        channels = is_k * n_k_heads * K + places
        if is_tail:
            write_tail(x, tails, virtual, n, reach, back, end, tail_to, channels, mask, x_row, n_channels, KERNEL)
        else:
            here = mask & (i < n)
            y = convolved(
                x, weight, bias, tails, tl.minimum(i, n - 1), reach, back, channels, here, x_row, n_channels,
                w_channel, w_tap, KERNEL, True,
            )  # fmt: skip
            y = y.to(x.dtype.element_ty).to(tl.float32)
            y *= tl.rsqrt(tl.sum(y * y, axis=2) + 1e-6)[:, :, None]
            to = (at * n_k_heads * K)[:, None, None] + places
            if is_k == 0:
                tl.store(q + to, y * scale, mask=here)
            else:
                tl.store(k + to, y, mask=here)
    else:
        v_heads = (part - 2 * k_parts) * HEADS + tl.arange(0, HEADS)
        v_places = v_heads[None, :, None] * V + tl.arange(0, BV)[None, None, :]
        there = (v_heads < n_v_heads)[None, :]
        v_mask = there[:, :, None] & (tl.arange(0, BV) < V)[None, None, :]
        v_channels = 2 * n_k_heads * K + v_places
        if is_tail:
            write_tail(x, tails, virtual, n, reach, back, end, tail_to, v_channels, v_mask, x_row, n_channels, KERNEL)
        else:
            both = there & (rows < n)[:, None]
            rate = tl.load(A_log + v_heads, mask=v_heads < n_v_heads, other=0.0).to(tl.float32)[None, :]
            time = tl.load(a + at[:, None] * a_row + v_heads[None, :], mask=both, other=0.0).to(tl.float32)
            time += tl.load(dt_bias + v_heads, mask=v_heads < n_v_heads, other=0.0).to(tl.float32)[None, :]
            gates = at[:, None] * n_v_heads + v_heads[None, :]
            tl.store(log_decay + gates, -tl.exp(rate) * _softplus(time), mask=both)
            gate = tl.load(b + at[:, None] * b_row + v_heads[None, :], mask=both, other=0.0).to(tl.float32)
            gate = tl.sigmoid(gate).to(b.dtype.element_ty).to(tl.float32)
            tl.store(beta + gates, beta_scale * gate, mask=both)
            here = v_mask & (i < n)
            y = convolved(
                x, weight, bias, tails, tl.minimum(i, n - 1), reach, back, v_channels, here, x_row, n_channels,
                w_channel, w_tap, KERNEL, True,
            )  # fmt: skip
            tl.store(v + (at * n_v_heads * V)[:, None, None] + v_places, y.to(v.dtype.element_ty), mask=here)


@triton.jit
def _softplus(x):
    """Compute ``log(1 + e^x) = max(x, 0) + log(1 + u)``, u = e^-|x|; log(1 + u) as ``2 artanh(u / (2 + u))``, whose
    series keeps the small values that ``1 + u`` rounds away, which decays of long half-life are made of."""
    u = tl.exp(-tl.abs(x))
    s = u / (2.0 + u)  # at most 1/3
    s2 = s * s
    series = 1.0 / 15.0
    for odd in tl.static_range(13, 0, -2):
        series = series * s2 + 1.0 / odd
    return tl.maximum(x, 0.0) + 2.0 * s * series
