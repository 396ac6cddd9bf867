"""Attention of a sequence's rows over its cached interiors, which are read in place, and over its own rows.

A cached interior's keys are rotated at local positions, so that for a segment at offset p the query turned by -p gives
the same product as the key turned by p.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.dense_attention import dense
from hypic_rag.engine.state import KVCache, TorchSegment, TorchSequence


@dataclass(frozen=True)
class VisibleKeys:
    """What the rows of a sequence can see in one layer: its interiors and its own rows."""

    sequence: TorchSequence
    own: KVCache
    slot: int
    layer: AttentionLayer
    rope_offsets: tuple[Tensor, Tensor] | None

    def interiors(self) -> Iterable[tuple[int, TorchSegment, Tensor, Tensor]]:
        """Yield (number, interior, its keys, its values) of each interior."""
        for i, interior in enumerate(self.sequence.segments):
            kept = interior.layers[self.slot]
            if self.layer.latent:
                yield i, interior, kept["latent"], kept["latent"][..., : self.layer.v_dim]
            else:
                yield i, interior, kept["K"], kept["V"]

    def turned(self, x: Tensor, i: int, sign: int) -> Tensor:
        """Turn queries to interior i's place (sign 1), or its keys to the sequence's (sign -1)."""
        if self.rope_offsets is None:
            return x
        assert self.layer.rotary is not None
        cos, sin = self.rope_offsets[0][i], self.rope_offsets[1][i]
        return self.layer.rotary.turn(x, cos, sin if sign > 0 else -sin).to(x.dtype)

    def too_far(self, first: int, n: int, blocks: Sequence[tuple[int | None, int]], window: int) -> Tensor:
        """Return (n, L), True where a key is beyond the window of the own rows ``first, ...``.

        blocks: of keys, in their order: position of the first (None: they are the own rows) and how many.
        """
        own = torch.tensor(self.sequence.row_positions[: first + n])
        keys = torch.cat([own if start is None else torch.arange(start, start + size) for start, size in blocks])
        return own[first:, None] - keys >= window


def spliced_attention(visible: VisibleKeys, first: int, q: Tensor, params: AttentionParams) -> Tensor:
    """Attend from own rows to the interiors' keys in place and to the own ones. q: (Hq, N, D), the sequence's own rows
    ``first, first + 1, ...``. Returns (Hq, N, Dv).

    One softmax over the scores of all interiors and of the own rows. Heads that share keys become rows of one product.
    """
    n, dim = q.shape[1:]
    own, last = visible.own, first + n
    grouped = q.reshape(own.keys.shape[0], -1, n, dim) * params.scale
    # (rows that do not see it yet, keys, values, queries turned to its place, position of the first key)
    blocks: list[tuple[int, Tensor, Tensor, Tensor, int | None]] = []
    for i, interior, k, v in visible.interiors():
        skip = max(0, interior.first_row - first)
        if skip < n and k.shape[1]:
            blocks.append((skip, k, v, visible.turned(grouped[:, :, skip:], i, 1), interior.position))
    blocks.append((0, own.keys[:, :last], own.values_of(visible.layer.v_dim)[:, :last], grouped, None))

    edges = list(accumulate((k.shape[1] for _, k, _, _, _ in blocks), initial=0))
    scores = torch.full((*grouped.shape[:3], edges[-1]), float("-inf"), device=q.device)
    for (skip, k, _, queries, _), start, stop in zip(blocks, edges, edges[1:], strict=False):
        scores[:, :, skip:, start:stop] = (queries.flatten(1, 2) @ k.mT).view(*queries.shape[:3], -1)
    if n > 1:
        later = torch.ones(n, last, dtype=torch.bool, device=q.device).triu(first + 1)
        scores[..., edges[-2] :].masked_fill_(later, float("-inf"))
    if (window := visible.layer.window) is not None:
        far = visible.too_far(first, n, [(position, k.shape[1]) for _, k, _, _, position in blocks], window)
        scores.masked_fill_(far.to(q.device), float("-inf"))
    weights = params.weights(scores.flatten(0, 1)).view_as(scores).to(blocks[-1][2].dtype)
    out = torch.zeros(*grouped.shape[:3], blocks[-1][2].shape[-1], device=q.device)
    for (skip, _, v, _, _), start, stop in zip(blocks, edges, edges[1:], strict=False):
        here = weights[:, :, skip:, start:stop]
        out[:, :, skip:] += (here.flatten(1, 2) @ v).view(*here.shape[:3], -1)
    return out.to(q.dtype).flatten(0, 1)


def joined_attention(visible: VisibleKeys, first: int, q: Tensor, params: AttentionParams) -> Tensor:
    """Attend as ``spliced_attention`` does, for many rows: the interiors' keys are turned to
    their places and moved together."""
    n = q.shape[1]
    own, last = visible.own, first + n
    interiors = list(visible.interiors())
    keys = [visible.turned(k, i, -1) for i, _, k, _ in interiors] + [own.keys[:, :last]]
    values = [v for *_, v in interiors] + [own.values_of(visible.layer.v_dim)[:, :last]]
    since = [torch.full((k.shape[1],), interior.first_row - first) for _, interior, k, _ in interiors]
    visible_from = torch.cat((*since, torch.arange(-first, n)))  # the row from which a key is seen
    mask = visible_from <= torch.arange(n)[:, None]
    if (window := visible.layer.window) is not None:
        blocks = [*((interior.position, k.shape[1]) for _, interior, k, _ in interiors), (None, last)]
        mask &= ~visible.too_far(first, n, blocks, window)
    return dense(q, torch.cat(keys, dim=1), torch.cat(values, dim=1), mask.to(q.device), params)
