"""Full attention of active rows over cached interiors (read in place) and the sequence's own rows.

Registered with transformers as ``attn_implementation="hypic"``; queries and keys arrive rotated at the positions
of the pass. A cached interior's keys are rotated at local positions, so that for a segment at offset p the query
turned by -p gives the same product as the key turned by p.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from hypic_rag.engine.context import Assembly, Current, Isolation
from hypic_rag.engine.layout import AttentionLayer, Layout
from hypic_rag.engine.rotary import Rotary
from hypic_rag.engine.state import Interior, PrivateKV, SequenceState

IMPLEMENTATION = "hypic"
QUERY_BLOCK = 512  # rows a block, so that scores stay small where many live rows see a long past
MANY_ROWS = 128  # beyond it, moving the keys together costs less than what torch's own attention saves


@dataclass(frozen=True)
class Seat:
    """What an attention module knows of its place."""

    slot: int
    layer: AttentionLayer
    current: Current

    @classmethod
    def take(cls, layer: AttentionLayer, layout: Layout) -> "Seat":
        """The next slot, for a module that calls ``attend`` itself."""
        return cls(layout.take(layer), layer, layout.current)

    @classmethod
    def give(
        cls, module: Any, config: Any, layout: Layout, rotary: Rotary | None = None, window: int | None = None
    ) -> None:
        """The next slot, for a module of Hugging Face's, whose attention function finds it as ``module.hypic``.

        window: 0 is none, as some configurations have it.
        """
        dim = module.head_dim
        layer = AttentionLayer(config.num_key_value_heads, dim, dim, rotary, window or None)
        module.hypic = cls.take(layer, layout)


def hypic_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers. query: (1, Hq, N, D); key, value: (1, H, N, D). Returns (1, N, Hq, D).

    softcap: of the scores (Gemma 2). s_aux: (Hq,), a logit a head that takes weight and gives nothing (sinks).
    """
    seat = getattr(module, "hypic", None)
    if seat is None:
        raise RuntimeError(
            "this model was loaded for SegmentEngine: call the engine, or load it again without "
            f"attn_implementation={IMPLEMENTATION!r}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = attend(seat, query[0], key[0], value[0], Scoring(scale, softcap, s_aux))
    return out.transpose(0, 1)[None], None


AttentionInterface.register(IMPLEMENTATION, hypic_attention)


@dataclass(frozen=True)
class Scoring:
    """How products become weights."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether torch's own attention does it."""
        return self.softcap is None and self.sinks is None

    def weights(self, scores: Tensor) -> Tensor:
        """scores: (..., Hq, N, L) float32, scaled, -inf where unseen; changed. The last axis sums to one or less."""
        if self.softcap is not None:
            scores = torch.where(scores.isinf(), scores, self.softcap * torch.tanh(scores / self.softcap))
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.float().view(*scores.shape[:-2], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]


def attend(seat: Seat, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """q: (Hq, N, D); k: (H, N, D); v: (H, N, Dv), rows of the pass. Returns (Hq, N, Dv)."""
    context = seat.current.context
    if isinstance(context, Isolation):
        return _isolated(context, seat, q, k, v, scoring)
    if not isinstance(context, Assembly):
        return context.attend(seat, q, k, v, scoring)
    outputs = []
    for s, (start, stop) in enumerate(context.plan.spans):
        outputs.append(_assembled(context, s, seat, q[:, start:stop], k[:, start:stop], v[:, start:stop], scoring))
    return torch.cat(outputs, dim=1)


def _isolated(context: Isolation, seat: Seat, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Every segment sees itself alone; its interior's keys (at local positions) and values are kept."""
    outputs = []
    for s, ((start, stop), dropped) in enumerate(zip(context.plan.spans, context.dropped, strict=True)):
        rows, interior = slice(start, stop), slice(start + dropped, stop)
        outputs.append(causal(q[:, rows], k[:, rows], v[:, rows], scoring, seat.layer.window))
        kept = {"latent": k} if seat.layer.latent else {"K": k, "V": v}
        context.kept[seat.slot][s] = {
            name: t[:, interior].clone(memory_format=torch.contiguous_format) for name, t in kept.items()
        }
    return torch.cat(outputs, dim=1)


def _assembled(context: Assembly, s: int, seat: Seat, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """One sequence's rows."""
    sequence, layer, n = context.sequences[s], seat.layer, q.shape[1]
    own = sequence.kv.get(seat.slot)
    if own is None:
        own = sequence.kv[seat.slot] = PrivateKV.empty(k, None if layer.latent else v, max(sequence.capacity, n))
    past = own.n
    own.append(k, v)
    if past == 0 and not sequence.interiors:
        return causal(q, k, v, scoring, layer.window)
    turns = None if layer.rotary is None else context.turns[s][layer.rotary.index]
    seen = Seen(sequence, own, seat, turns)
    how = _spliced if n <= MANY_ROWS or not scoring.is_plain else _joined
    blocks = [how(seen, past + i, q[:, i : i + QUERY_BLOCK], scoring) for i in range(0, n, QUERY_BLOCK)]
    return torch.cat(blocks, dim=1)


@dataclass(frozen=True)
class Seen:
    """What the rows of a sequence can see in one layer: its interiors and its own rows."""

    sequence: SequenceState
    own: PrivateKV
    seat: Seat
    turns: tuple[Tensor, Tensor] | None

    def interiors(self) -> Iterable[tuple[int, Interior, Tensor, Tensor]]:
        """(number, interior, its keys, its values)."""
        layer = self.seat.layer
        for i, interior in enumerate(self.sequence.interiors):
            kept = interior.layers[self.seat.slot]
            if layer.latent:
                yield i, interior, kept["latent"], kept["latent"][..., : layer.v_dim]
            else:
                yield i, interior, kept["K"], kept["V"]

    def turned(self, x: Tensor, i: int, sign: int) -> Tensor:
        """Queries turned to interior i's place (sign 1), or its keys to the sequence's (sign -1)."""
        if self.turns is None:
            return x
        assert self.seat.layer.rotary is not None
        cos, sin = self.turns[0][i], self.turns[1][i]
        return self.seat.layer.rotary.turn(x, cos, sin if sign > 0 else -sin).to(x.dtype)

    def too_far(self, first: int, n: int, blocks: Sequence[tuple[int | None, int]], window: int) -> Tensor:
        """(n, L), True where a key is beyond the window of the own rows ``first, ...``.

        blocks: of keys, in their order: position of the first (None: they are the own rows) and how many.
        """
        own = torch.tensor(self.sequence.row_positions[: first + n])
        keys = torch.cat([own if start is None else torch.arange(start, start + size) for start, size in blocks])
        return own[first:, None] - keys >= window


def _spliced(seen: Seen, first: int, q: Tensor, scoring: Scoring) -> Tensor:
    """q: (Hq, N, D), the sequence's own rows ``first, first + 1, ...``. Returns (Hq, N, Dv).

    One softmax over the scores of all interiors and of the own rows. Heads that share keys become rows of one product.
    """
    n, dim = q.shape[1:]
    own, last = seen.own, first + n
    grouped = q.reshape(own.keys.shape[0], -1, n, dim) * scoring.scale
    # (rows that do not see it yet, keys, values, queries turned to its place, position of the first key)
    blocks: list[tuple[int, Tensor, Tensor, Tensor, int | None]] = []
    for i, interior, k, v in seen.interiors():
        skip = max(0, interior.first_row - first)
        if skip < n and k.shape[1]:
            blocks.append((skip, k, v, seen.turned(grouped[:, :, skip:], i, 1), interior.position))
    blocks.append((0, own.keys[:, :last], own.values_of(seen.seat.layer.v_dim)[:, :last], grouped, None))

    edges = list(accumulate((k.shape[1] for _, k, _, _, _ in blocks), initial=0))
    scores = torch.full((*grouped.shape[:3], edges[-1]), float("-inf"), device=q.device)
    for (skip, k, _, queries, _), start, stop in zip(blocks, edges, edges[1:], strict=False):
        scores[:, :, skip:, start:stop] = (queries.flatten(1, 2) @ k.mT).view(*queries.shape[:3], -1)
    if n > 1:
        later = torch.ones(n, last, dtype=torch.bool, device=q.device).triu(first + 1)
        scores[..., edges[-2] :].masked_fill_(later, float("-inf"))
    if (window := seen.seat.layer.window) is not None:
        far = seen.too_far(first, n, [(position, k.shape[1]) for _, k, _, _, position in blocks], window)
        scores.masked_fill_(far.to(q.device), float("-inf"))
    weights = scoring.weights(scores.flatten(0, 1)).view_as(scores).to(blocks[-1][2].dtype)
    out = torch.zeros(*grouped.shape[:3], blocks[-1][2].shape[-1], device=q.device)
    for (skip, _, v, _, _), start, stop in zip(blocks, edges, edges[1:], strict=False):
        here = weights[:, :, skip:, start:stop]
        out[:, :, skip:] += (here.flatten(1, 2) @ v).view(*here.shape[:3], -1)
    return out.to(q.dtype).flatten(0, 1)


def _joined(seen: Seen, first: int, q: Tensor, scoring: Scoring) -> Tensor:
    """As ``_spliced``, for many rows: the interiors' keys are turned to their places and moved together."""
    n = q.shape[1]
    own, last = seen.own, first + n
    interiors = list(seen.interiors())
    keys = [seen.turned(k, i, -1) for i, _, k, _ in interiors] + [own.keys[:, :last]]
    values = [v for *_, v in interiors] + [own.values_of(seen.seat.layer.v_dim)[:, :last]]
    since = [torch.full((k.shape[1],), interior.first_row - first) for _, interior, k, _ in interiors]
    visible_from = torch.cat((*since, torch.arange(-first, n)))  # the row from which a key is seen
    mask = visible_from <= torch.arange(n)[:, None]
    if (window := seen.seat.layer.window) is not None:
        blocks = [*((interior.position, k.shape[1]) for _, interior, k, _ in interiors), (None, last)]
        mask &= ~seen.too_far(first, n, blocks, window)
    return _dense(q, torch.cat(keys, dim=1), torch.cat(values, dim=1), mask.to(q.device), scoring)


def causal(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, window: int | None) -> Tensor:
    """Plain causal attention of rows at consecutive positions that see nothing but themselves."""
    n = q.shape[1]
    if scoring.is_plain and (window is None or n <= window):
        return _dense(q, k, v, None, scoring)
    mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    return _dense(q, k, v, mask if window is None else mask.triu(1 - window), scoring)


def _dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    """mask: (N, L), True where seen; None is causal."""
    n_shared = k.shape[0]
    if n_shared == 1:  # MLA's latent and multi-query attention: a view will do
        k, v = (t.expand(q.shape[0], -1, -1) for t in (k, v))
    elif n_shared < q.shape[0]:
        k, v = (t.repeat_interleave(q.shape[0] // n_shared, dim=0) for t in (k, v))
    if scoring.is_plain:
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scoring.scale
        )[0]
    assert mask is not None
    scores = (q * scoring.scale @ k.mT).float().masked_fill(~mask, float("-inf"))
    return scoring.weights(scores).to(v.dtype) @ v
