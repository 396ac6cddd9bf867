"""Transitions of whole segments of a delta rule, beside their prefill: ``T = prod_c (e^{g_c} I - K_c^T W_c)``.

A chunk of rows acts on the state before it as ``R -> e^g R - (K e^{g - g_i})^T (W R)``, with W the rows of the
UT transform (arXiv 2406.06484, 2412.06464) that the prefill has computed already. Started from the identity, that is
the segment's transition: no chunk's state is written, and nothing of V is read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64


def transitions(
    k: Tensor, w: Tensor, log_decay: Tensor, start: Tensor, stop: Tensor, block: int = 128, precision: str = "fp16"
) -> Tensor:
    """Compute T of segments of Gated DeltaNet.

    k: (N, Hk, K), keys at unit length. w: (N, H, K). log_decay: (N, H) float32, of each row alone, natural.
    start, stop: (S,) int32, the rows of each segment, whose chunks of 64 begin at ``start`` as those of w did.

    Returns T (S, H, K, K) float32. block: columns of T a program. precision: of the products, as ``tl.dot`` has it, or
    "fp16": of halves, which have TF32's 10 bits of fraction at twice its speed. Their narrow range is enough, since
    all factors are bounded: keys by 1, rows of w by beta (they are keys behind transitions, which make nothing
    longer), and T by the decay of the chunks so far, which is taken out of it. What decay within a chunk brings below
    6e-8 is lost.
    """
    n_heads, dim = w.shape[1:]
    assert dim & (dim - 1) == 0, f"head size {dim} is no power of two"
    k, w, log_decay = k.contiguous(), w.contiguous(), log_decay.contiguous()
    T = torch.empty(len(start), n_heads, dim, dim, dtype=torch.float32, device=k.device)
    block = min(block, dim)
    _transition[(len(start) * n_heads, dim // block)](
        k, w, log_decay, start, stop, T, n_heads, n_heads // k.shape[1],
        K=dim, BLOCK=block, CHUNK=CHUNK, PRECISION=precision, num_warps=4 if dim * block <= 4096 else 8, num_stages=2,
    )  # fmt: skip
    return T


@triton.jit
def _transition(
    k_at, w_at, g_at, start_at, stop_at, T_at, n_heads, group,
    K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    segment, head = tl.program_id(0) // n_heads, tl.program_id(0) % n_heads
    start, stop = tl.load(start_at + segment), tl.load(stop_at + segment)
    n_key_heads = n_heads // group
    dims, rows = tl.arange(0, K), tl.arange(0, CHUNK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    X = tl.where(dims[:, None] == columns[None, :], 1.0, 0.0)
    undecayed = 1.0
    for chunk in range(start, stop, CHUNK):
        at = (chunk + rows).to(tl.int64)
        here = at < stop
        g = tl.cumsum(tl.load(g_at + at * n_heads + head, mask=here, other=0.0), 0)
        last = tl.sum(tl.load(g_at + at * n_heads + head, mask=here, other=0.0), 0)
        w = tl.load(w_at + (at[:, None] * n_heads + head) * K + dims[None, :], mask=here[:, None], other=0.0)
        k_place = (at[None, :] * n_key_heads + head // group) * K + dims[:, None]
        k = tl.load(k_at + k_place, mask=here[None, :], other=0.0)  # (K, CHUNK)
        if PRECISION == "fp16":
            read = tl.dot(w.to(tl.float16), (X * undecayed).to(tl.float16))
            decayed = (read * tl.exp(last - g)[:, None]).to(tl.float16)
            X = X * tl.exp(last) - tl.dot(k.to(tl.float16), decayed) / undecayed
            undecayed = tl.minimum(undecayed * tl.exp(-last), 1e30)
        else:
            read = tl.dot(w.to(tl.float32), X, input_precision=PRECISION)
            decayed = read * tl.exp(last - g)[:, None]
            X = X * tl.exp(last) - tl.dot(k.to(tl.float32), decayed, input_precision=PRECISION)
    place = ((segment * n_heads + head).to(tl.int64) * K + dims[:, None]) * K + columns[None, :]
    tl.store(T_at + place, X)
