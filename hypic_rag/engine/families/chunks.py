"""The chunked form that all recurrences share: what needs no state is done for all chunks at once, then they run.

Within a chunk, what rows write is ``written = u - w R``: the families without a removal have ``w`` zero. Then

    out   = q R + scores written
    R'    = decay * R + k written

Sources: the UT transform of DeltaNet (arXiv 2406.06484), Gated DeltaNet (2412.06464), GLA (2312.06635).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PAIR_BYTES = 64 << 20  # of decays a pair of rows and a channel, made at once


@dataclass(frozen=True)
class Chunks:
    """B chunks of C rows; W counts what they write (C, or 2 C where removals are written apart).

    u: (B, H, W, V); w: (B, H, W, K) or None; q: (B, H, C, K), decayed; k: (B, H, K, W), decayed to the chunk's
    end; scores: (B, H, C, W); decay: (B, H, 1 or K, 1), of the whole chunk.
    """

    u: Tensor
    w: Tensor | None
    q: Tensor
    k: Tensor
    scores: Tensor
    decay: Tensor


class ChunkRunner:
    """Chunks of several sequences, run one after the other from a state; the rows' outputs are read at the end.

    The state has (B, H, K, V') with V' >= V. Columns beyond V are carried with no input (``u = 0``): started from
    the identity they become the transition.
    """

    def __init__(self, chunks: Chunks):
        self.q, self.u, self.k, self.decay = (t.flatten(0, 1) for t in (chunks.q, chunks.u, chunks.k, chunks.decay))
        self.w = None if chunks.w is None else chunks.w.flatten(0, 1)
        self.scores = chunks.scores.flatten(0, 1)
        self.shape = chunks.q.shape[:3]  # B, H, C
        self._before = chunks.u.new_empty(self.q.shape[0], self.q.shape[-1], self.u.shape[-1])
        self._written = self.u if self.w is None else torch.empty_like(self.u)

    def advance(self, start: int, state: Tensor) -> Tensor:
        """Run chunks ``start, start + 1, ...``, one for each sequence of ``state``; return the states after them."""
        heads = self.shape[1]
        at = slice(start * heads, (start + state.shape[0]) * heads)
        u, k, decay = self.u[at], self.k[at], self.decay[at]
        before, n_values = state.flatten(0, 1), u.shape[-1]
        if self.w is None:
            written = u
        elif before.shape[-1] == n_values:
            written = torch.baddbmm(u, self.w[at], before, alpha=-1, out=self._written[at])
        else:
            written = torch.bmm(self.w[at], before).neg_()
            written[..., :n_values] += u
            self._written[at] = written[..., :n_values]
        self._before[at] = before[..., :n_values]
        return torch.baddbmm(decay * before, k, written).view_as(state)

    def outputs(self) -> Tensor:
        """Return what the rows of all chunks that were run read, (B, H, C, V)."""
        out = torch.baddbmm(self.q @ self._before, self.scores, self._written)
        return out.view(*self.shape, -1)


def gather(rows: Tensor, index: Tensor) -> Tensor:
    """Lay (N, H, ...) rows in chunks (B, H, C, ...); the padding row is zero, so it neither decays nor writes."""
    padded = torch.cat((rows, rows.new_zeros(1, *rows.shape[1:])))
    return padded[index].transpose(1, 2)


def log_decays(rows_decay: Tensor, index: Tensor) -> Tensor:
    """Lay each row's log decays, (N, H) or (N, H, K), in chunks (B, H, C, 1 or K)."""
    return gather(rows_decay if rows_decay.dim() == 3 else rows_decay[..., None], index)


def decays_before(total: Tensor) -> Tensor:
    """Turn cumulated log decays (B, H, C, D) to those before each row: by a shift,
    which unlike a difference is exact."""
    return torch.cat((torch.zeros_like(total[..., :1, :]), total[..., :-1, :]), dim=-2)


def decayed_products(
    xs: tuple[Tensor, ...], y: Tensor, later: Tensor, earlier: Tensor, diagonal: int = 0
) -> list[Tensor]:
    """Compute for each x ``x_i . (exp(later_i - earlier_j) y_j)`` where j <= i + diagonal, else 0: (B, H, C, C) each.

    xs, y: (B, H, C, K); later, earlier: (B, H, C, 1 or K), logs of decays from the chunk's start. The difference is
    taken before the exponential: ``exp(-earlier)`` alone overflows.
    """
    size = y.shape[-2]
    unseen = ~torch.ones(size, size, dtype=torch.bool, device=y.device).tril(diagonal)
    if later.shape[-1] == 1:
        ratio = (later - earlier.mT).masked_fill(unseen, float("-inf")).exp()
        return [(x @ y.mT).mul_(ratio) for x in xs]
    products = [y.new_empty(*y.shape[:2], size, size) for _ in xs]
    step = max(1, PAIR_BYTES // (4 * y.shape[1] * size * size * y.shape[-1]))
    for b in range(0, y.shape[0], step):
        at = slice(b, b + step)
        pairs = later[at, :, :, None] - earlier[at, :, None]
        pairs = pairs.masked_fill_(unseen[..., None], float("-inf")).exp_().mul_(y[at, :, None])
        for product, x in zip(products, xs, strict=True):
            product[at] = (pairs @ x[at, ..., None])[..., 0]
    return products


def solve_unit_lower(system: Tensor, right: Tensor) -> Tensor:
    """Solve ``system @ X = right`` for X, system (B, H, C, C) lower triangular, its
    diagonal taken as one. Changes right."""
    n = system.shape[-1]
    if n > 16:
        return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)  # type: ignore[no-any-return]
    for i in range(n - 1):  # LAPACK is called once a matrix, which costs more than a small matrix takes
        right[..., i + 1 :, :].addcmul_(system[..., i + 1 :, i, None], right[..., i, None, :], value=-1)
    return right
