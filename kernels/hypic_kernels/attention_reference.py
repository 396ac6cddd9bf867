"""What attention.py computes, in plain torch: a product a piece, and one softmax over all a row sees."""

import torch
from torch import Tensor

from hypic_kernels.plan import AttentionPlan


def store_kv(k: Tensor, v: Tensor, kv_at: Tensor, K: Tensor, V: Tensor) -> None:
    """Set ``K[kv_at[i]] = k[i]`` and ``V[kv_at[i]] = v[i]`` where kv_at is not -1. Shapes: attention.store_kv."""
    rows = kv_at >= 0
    K[kv_at[rows].long()] = k[rows]
    V[kv_at[rows].long()] = v[rows]


def spliced_attention(
    q: Tensor,
    K: Tensor,
    V: Tensor,
    plan: AttentionPlan,
    cos: Tensor,
    sin: Tensor,
    partner: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute attention.spliced_attention in the dtype of q, which float64 or float32 suit; turned queries unrounded.

    Cost: N*Hq scores for every key of every piece at once.
    """
    N, Hq, _ = q.shape
    H = K.shape[1]
    row_own = plan.row_own.tolist()
    pieces = list(
        zip(
            *(t.tolist() for t in (plan.q_start, plan.q_end, plan.kv, plan.n, plan.turn, plan.own)),
            strict=True,
        )
    )
    scores, values = [torch.full((N, Hq, 1), float("-inf"), dtype=q.dtype, device=q.device)], []
    if sinks is not None:
        scores[0] = sinks.to(q.dtype).expand(N, Hq)[..., None]
    for q_start, q_end, kv, n, turn, own in pieces:
        if q_start == q_end:
            continue
        rows = q[q_start:q_end]
        if turn >= 0:
            rows = rows * cos[turn].to(q.dtype) + rows[..., partner.long()] * sin[turn].to(q.dtype)
        keys = K[kv : kv + n].to(q.dtype).repeat_interleave(Hq // H, 1)  # (n, Hq, D)
        score = torch.einsum("ihd,jhd->ihj", rows, keys) * scale
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if own >= 0:
            last = torch.tensor(row_own[q_start:q_end], device=q.device)[:, None]
            hidden = own + torch.arange(n, device=q.device) > last  # (rows, n)
            score = score.masked_fill(hidden[:, None], float("-inf"))
        everywhere = torch.full((N, Hq, n), float("-inf"), dtype=q.dtype, device=q.device)
        everywhere[q_start:q_end] = score
        scores.append(everywhere)
        values.append(V[kv : kv + n].to(q.dtype).repeat_interleave(Hq // H, 1))
    weights = torch.softmax(torch.cat(scores, -1), -1).nan_to_num(0.0)  # a row of no piece: softmax of -inf alone
    result = torch.zeros((N, Hq, V.shape[2]), dtype=q.dtype, device=q.device)
    at = 1
    for value in values:
        result += torch.einsum("ihj,jhv->ihv", weights[..., at : at + len(value)], value)
        at += len(value)
    return result
