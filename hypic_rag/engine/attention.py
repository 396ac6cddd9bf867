"""Full attention of active rows over cached interiors (read in place) and the sequence's own rows.

Registered with transformers as ``attn_implementation="hypic"``; queries and keys arrive rotated at the positions
of the pass. A cached interior's keys are rotated at local positions, so that for a segment at offset p the query
turned by -p gives the same product as the key turned by p. Blocks of keys are joined by their log-sum-exp.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from hypic_rag.engine.context import Assembly, Context, Isolation
from hypic_rag.engine.rotary import turn
from hypic_rag.engine.state import PrivateKV, SequenceState

IMPLEMENTATION = "hypic"
QUERY_BLOCK = 512  # rows a block, so that scores stay small where many live rows see a long past


def hypic_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    hypic: Context | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers. query: (1, Hq, N, D); key, value: (1, H, N, D). Returns (1, N, Hq, D)."""
    if hypic is None:
        raise RuntimeError(
            "this model was loaded for SegmentEngine: call the engine, or load it again without "
            f"attn_implementation={IMPLEMENTATION!r}"
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    q, k, v = query[0], key[0], value[0]
    if isinstance(hypic, Isolation):
        out = _isolated(hypic, layer, q, k, v, scaling)
    else:
        out = _assembled(hypic, layer, q, k, v, scaling)
    return out.transpose(0, 1)[None], None


AttentionInterface.register(IMPLEMENTATION, hypic_attention)


def _isolated(context: Isolation, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Every segment sees itself alone; its interior's keys (at local positions) and values are kept."""
    outputs, kept = [], []
    for (start, stop), seam in zip(context.plan.spans, context.seams, strict=True):
        rows = slice(start, stop)
        outputs.append(_causal(q[:, rows], k[:, rows], v[:, rows], scale))
        interior = slice(start + seam, stop)
        kept.append(
            {
                "K": k[:, interior].clone(memory_format=torch.contiguous_format),
                "V": v[:, interior].clone(memory_format=torch.contiguous_format),
            }
        )
    context.kept[layer] = kept  # type: ignore[assignment]
    return torch.cat(outputs, dim=1)


def _assembled(context: Assembly, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    outputs = []
    for s, (start, stop) in enumerate(context.plan.spans):
        sequence = context.sequences[s]
        rows = slice(start, stop)
        own = sequence.kv.get(layer)
        if own is None:
            own = sequence.kv[layer] = PrivateKV.empty(k, max(sequence.capacity, stop - start))
        past = own.n
        own.append(k[:, rows], v[:, rows])
        if past == 0 and not sequence.interiors:
            outputs.append(_causal(q[:, rows], k[:, rows], v[:, rows], scale))
            continue
        blocks = [
            _spliced(
                q[:, i : min(i + QUERY_BLOCK, stop)],
                past + i - start,
                sequence,
                own,
                layer,
                context.turns[s],
                scale,
            )
            for i in range(start, stop, QUERY_BLOCK)
        ]
        outputs.append(torch.cat(blocks, dim=1))
    return torch.cat(outputs, dim=1)


def _spliced(
    q: Tensor,
    first: int,
    sequence: SequenceState,
    own: PrivateKV,
    layer: int,
    turns: tuple[Tensor, Tensor],
    scale: float,
) -> Tensor:
    """q: (Hq, N, D), the sequence's private rows ``first, first + 1, ...``. Returns (Hq, N, D)."""
    n = q.shape[1]
    seen = first + n
    mask = None
    if n > 1:
        mask = torch.ones(n, seen, dtype=torch.bool, device=q.device).tril(first)
    out, lse = _attend(q, own.keys[:, :seen], own.values[:, :seen], scale, mask)
    for i, interior in enumerate(sequence.interiors):
        skip = max(0, interior.first_row - first)  # rows before the interior do not see it
        kv = interior.layers[layer]
        if skip >= n or kv["K"].shape[1] == 0:
            continue
        turned = turn(q[:, skip:], turns[0][i], turns[1][i]).to(q.dtype)
        here, weight = _attend(turned, kv["K"], kv["V"], scale, None)
        joint = torch.logaddexp(lse[:, skip:], weight)
        out[:, skip:] = out[:, skip:] * (lse[:, skip:] - joint).exp() + here * (weight - joint).exp()
        lse[:, skip:] = joint
    return out.to(q.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """One block of keys. q: (Hq, N, D); k, v: (H, L, D); mask: (N, L), True where seen, or None.

    Returns the output (Hq, N, D) and the log-sum-exp of its scores (Hq, N, 1), both float32.
    """
    n_heads, n, dim = q.shape
    groups = n_heads // k.shape[0]
    grouped = q.reshape(k.shape[0], groups * n, dim)  # heads that share keys become rows of one product
    scores = (grouped * scale @ k.transpose(-1, -2)).float()
    if mask is not None:
        scores = scores.view(k.shape[0], groups, n, -1).masked_fill_(~mask, float("-inf")).view_as(scores)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    out = (weights.to(v.dtype) @ v).float() / total
    return out.view(n_heads, n, -1), (top + total.log()).view(n_heads, n, 1)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Plain causal attention of rows that see nothing but themselves."""
    groups = q.shape[0] // k.shape[0]
    k, v = (t.repeat_interleave(groups, dim=0)[None] for t in (k, v))
    return F.scaled_dot_product_attention(q[None], k, v, is_causal=True, scale=scale)[0]
