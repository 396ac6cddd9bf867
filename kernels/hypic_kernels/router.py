"""Each row's most probable experts and their weights, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Choose by softmax the k most probable experts, made to sum to one; of equals the lower index comes first.

    logits: (N, E), any floating type, its last axis contiguous. k: 1..E.

    Returns index (N, k) int64, most probable first, and weights (N, k) in the logits' type, computed in float32.
    Raises ValueError where k is out of range.
    Source: transformers, Qwen3_5MoeTopKRouter. Oracle: router_reference.route (test_router.py).
    """
    n, n_experts = logits.shape
    if not 1 <= k <= n_experts:
        raise ValueError(f"k is {k}, but there are {n_experts} experts: choose between 1 and {n_experts}")
    index = torch.empty(n, k, dtype=torch.int64, device=logits.device)
    weights = torch.empty(n, k, dtype=logits.dtype, device=logits.device)
    _route[(n,)](
        logits, index, weights, logits.stride(0), n_experts, k,
        triton.next_power_of_2(n_experts), triton.next_power_of_2(k), num_warps=1,
    )  # fmt: skip
    return index, weights


@triton.jit
def _route(
    logits,
    index,
    weights,
    stride,
    E: tl.constexpr,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
):
    """Route one row: take the largest K times."""
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    choice = tl.arange(0, CHOICES)
    logit = tl.load(logits + row * stride + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    odds = tl.exp(logit - tl.max(logit, 0))
    left = tl.where(expert < E, odds / tl.sum(odds, 0), -1.0)  # -1: cannot be taken
    index_chosen = tl.zeros((CHOICES,), dtype=tl.int64)
    chosen = tl.zeros((CHOICES,), dtype=tl.float32)
    for c in tl.static_range(K):
        best = tl.argmax(left, 0)
        chosen = tl.where(choice == c, tl.max(left, 0), chosen)
        index_chosen = tl.where(choice == c, best, index_chosen)
        left = tl.where(expert == best, -1.0, left)
    chosen = chosen / tl.sum(chosen, 0)
    tl.store(index + row * K + choice, index_chosen, mask=choice < K)
    tl.store(weights + row * K + choice, chosen.to(weights.dtype.element_ty), mask=choice < K)
