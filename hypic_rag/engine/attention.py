"""Full attention of active rows over cached interiors (read in place) and the sequence's own rows.

Registered with transformers as ``attn_implementation="hypic"``; queries and keys arrive rotated at the positions
of the pass. A cached interior's keys are rotated at local positions, so that for a segment at offset p the query
turned by -p gives the same product as the key turned by p.
"""

from itertools import accumulate
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
MANY_ROWS = 128  # beyond it, moving the keys together costs less than what torch's own attention saves


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
        attend = _spliced if stop - start <= MANY_ROWS else _joined
        blocks = [
            attend(q[:, rows][:, i : i + QUERY_BLOCK], past + i, sequence, own, layer, context.turns[s], scale)
            for i in range(0, stop - start, QUERY_BLOCK)
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
    """q: (Hq, N, D), the sequence's private rows ``first, first + 1, ...``. Returns (Hq, N, D).

    One softmax over the scores of all interiors and of the own rows. Heads that share keys become rows of one product.
    """
    n_heads, n, dim = q.shape
    shared, seen = own.keys.shape[0], first + n
    grouped = q.reshape(shared, n_heads // shared, n, dim) * scale
    blocks = []  # (rows that do not see it yet, keys, values, queries turned to its place)
    for i, interior in enumerate(sequence.interiors):
        skip = max(0, interior.first_row - first)
        kv = interior.layers[layer]
        if skip < n and kv["K"].shape[1]:
            turned = turn(grouped[:, :, skip:], turns[0][i], turns[1][i]).to(q.dtype)
            blocks.append((skip, kv["K"], kv["V"], turned))
    blocks.append((0, own.keys[:, :seen], own.values[:, :seen], grouped))

    edges = list(accumulate((k.shape[1] for _, k, _, _ in blocks), initial=0))
    scores = torch.full((*grouped.shape[:3], edges[-1]), float("-inf"), device=q.device)
    for (skip, k, _, queries), start, stop in zip(blocks, edges, edges[1:], strict=False):
        scores[:, :, skip:, start:stop] = (queries.flatten(1, 2) @ k.mT).view(*queries.shape[:3], -1)
    if n > 1:
        later = torch.ones(n, seen, dtype=torch.bool, device=q.device).triu(first + 1)
        scores[..., edges[-2] :].masked_fill_(later, float("-inf"))
    weights = scores.softmax(-1).to(own.values.dtype)
    out = torch.zeros(*grouped.shape[:3], own.values.shape[-1], device=q.device)
    for (skip, _, v, _), start, stop in zip(blocks, edges, edges[1:], strict=False):
        here = weights[:, :, skip:, start:stop]
        out[:, :, skip:] += (here.flatten(1, 2) @ v).view(*here.shape[:3], -1)
    return out.to(q.dtype).flatten(0, 1)


def _joined(
    q: Tensor,
    first: int,
    sequence: SequenceState,
    own: PrivateKV,
    layer: int,
    turns: tuple[Tensor, Tensor],
    scale: float,
) -> Tensor:
    """As ``_spliced``: the interiors' keys are turned to their places and moved together."""
    n = q.shape[1]
    seen = first + n
    interiors = [(i, interior, interior.layers[layer]) for i, interior in enumerate(sequence.interiors)]
    keys = [turn(kv["K"], turns[0][i], -turns[1][i]).to(q.dtype) for i, _, kv in interiors]
    values = [kv["V"] for _, _, kv in interiors]
    visible_from = [torch.full((kv["K"].shape[1],), interior.first_row - first) for _, interior, kv in interiors]
    k, v = torch.cat((*keys, own.keys[:, :seen]), dim=1), torch.cat((*values, own.values[:, :seen]), dim=1)
    since = torch.cat((*visible_from, torch.arange(-first, n))).to(q.device)  # the row from which a key is seen
    mask = since <= torch.arange(n, device=q.device)[:, None]
    groups = q.shape[0] // k.shape[0]
    k, v = (t.repeat_interleave(groups, dim=0)[None] for t in (k, v))
    return F.scaled_dot_product_attention(q[None], k, v, attn_mask=mask, scale=scale)[0]


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Plain causal attention of rows that see nothing but themselves."""
    groups = q.shape[0] // k.shape[0]
    k, v = (t.repeat_interleave(groups, dim=0)[None] for t in (k, v))
    return F.scaled_dot_product_attention(q[None], k, v, is_causal=True, scale=scale)[0]
