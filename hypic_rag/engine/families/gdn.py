"""Gated DeltaNet: ``S_t = g_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T``, read as ``q_t^T S_t``.

The transition is dense, one ``(K, K)`` matrix a head. Sources: Gated DeltaNet (arXiv 2412.06464), the chunked
form with the UT transform of DeltaNet (arXiv 2406.06484), composition from HYPIC (arXiv 2607.01299, Eq. 6).
Oracle: ``reference.run_tokens`` (float64, token by token).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NAME = "gdn"


@dataclass(frozen=True)
class Rows:
    """What the recurrence reads of each row, float32. ``q`` is scaled, ``q`` and ``k`` are normalized.

    q, k: (N, H, K); v: (N, H, V); log_decay, beta: (N, H), log_decay <= 0.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor


@dataclass(frozen=True)
class Chunks:
    """The part of a chunk's work that needs no state, for ``B`` chunks of ``C`` rows at once.

    u: (B, H, C, V), values before the state's own prediction is taken off; w: (B, H, C, K), what reads that
    prediction; q: (B, H, C, K), decayed; k: (B, H, K, C), decayed to the chunk's end; scores: (B, H, C, C);
    decay: (B, H, 1, 1), of the whole chunk.
    """

    u: Tensor
    w: Tensor
    q: Tensor
    k: Tensor
    scores: Tensor
    decay: Tensor


def chunk(rows: Rows, index: Tensor) -> Chunks:
    """Gather rows into chunks and do all that needs no state.

    index: (B, C) int64, row numbers; ``N`` (one past the last row) pads and leaves the state as it is.
    """
    q, k, v = (_gather(t, index) for t in (rows.q, rows.k, rows.v))
    log_decay, beta = (_gather(t[..., None], index)[..., 0] for t in (rows.log_decay, rows.beta))
    total = log_decay.cumsum(-1)  # (B, H, C), log of the decay from the chunk's start
    k_beta, decay = k * beta[..., None], total.exp()[..., None]
    if index.shape[1] == 1:
        scores = (q * k).sum(-1, keepdim=True)
        return Chunks(v * beta[..., None], k_beta * decay, q * decay, k.transpose(-1, -2), scores, decay)
    # exp(total_i - total_j) for j <= i only: the other half would overflow.
    causal = torch.ones(index.shape[1], index.shape[1], dtype=torch.bool, device=q.device).tril()
    pairwise = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
    system = (k_beta @ k.transpose(-1, -2)).mul_(pairwise)
    right = torch.cat((v * beta[..., None], k_beta * decay), dim=-1)
    u, w = (t.contiguous() for t in _solve(system, right).split((v.shape[-1], k.shape[-1]), dim=-1))
    to_end = (total[..., -1:] - total).exp()[..., None]
    scores = (q @ k.transpose(-1, -2)).mul_(pairwise)
    return Chunks(u, w, q * decay, (k * to_end).transpose(-1, -2), scores, decay[..., -1:, :])


class Runner:
    """Chunks of several sequences, run one after the other from a state; the rows' outputs are read at the end.

    The state has (B, H, K, V') with V' >= V. Columns beyond V are carried with no input (``u = 0``): started from
    the identity they become the transition.
    """

    def __init__(self, chunks: Chunks):
        self.chunks = chunks
        self._flat = [t.flatten(0, 1) for t in (chunks.u, chunks.w, chunks.k, chunks.decay)]
        n, heads, _, n_values = chunks.u.shape
        self._before = chunks.u.new_empty(n * heads, chunks.q.shape[-1], n_values)
        self._written = torch.empty_like(self._flat[0])

    def advance(self, start: int, state: Tensor) -> Tensor:
        """The state after chunks ``start, start + 1, ...``, one for each of its sequences."""
        heads = self.chunks.u.shape[1]
        at = slice(start * heads, (start + state.shape[0]) * heads)
        u, w, k, decay = (t[at] for t in self._flat)
        before, n_values = state.flatten(0, 1), u.shape[-1]
        if before.shape[-1] == n_values:
            written = torch.baddbmm(u, w, before, alpha=-1, out=self._written[at])
            self._before[at] = before
        else:
            written = torch.bmm(w, before).neg_()
            written[..., :n_values] += u
            self._written[at], self._before[at] = written[..., :n_values], before[..., :n_values]
        return torch.baddbmm(decay * before, k, written).view_as(state)

    def outputs(self) -> Tensor:
        """(n_chunks, H, C, V), of all chunks that were run."""
        q, scores = self.chunks.q.flatten(0, 1), self.chunks.scores.flatten(0, 1)
        return torch.baddbmm(q @ self._before, scores, self._written).view_as(self.chunks.u)


def compose(R: Tensor, T: Tensor, S: Tensor) -> Tensor:
    """State after a segment, from the running state before it: ``T @ R + S``.

    R: (..., K, V) float32, running state. Not modified.
    T: (..., K, K) float32, what the segment does to any earlier state.
    S: (..., K, V) float32, what it leaves on an empty one.

    Source: HYPIC, arXiv 2607.01299, Eq. 6. Oracle: reference.run_tokens, within 1e-6.
    """
    shape = R.shape
    return torch.baddbmm(S.flatten(0, -3), T.flatten(0, -3), R.flatten(0, -3)).view(shape)


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """X of ``system @ X = right``, system (B, H, C, C) lower triangular, its diagonal taken as one. Changes right."""
    n = system.shape[-1]
    if n > 16:
        return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    for i in range(n - 1):  # LAPACK is called once a matrix, which costs more than a small matrix takes
        right[..., i + 1 :, :].addcmul_(system[..., i + 1 :, i, None], right[..., i, None, :], value=-1)
    return right


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    """(N, H, D) rows into (B, H, C, D); the padding row is zero, so it neither decays nor writes."""
    padded = torch.cat((rows, rows.new_zeros(1, *rows.shape[1:])))
    return padded[index].transpose(1, 2)
