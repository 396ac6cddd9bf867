"""The layout of a pass in small int32 tensors on the device, which every kernel reads.

A pass holds N rows of M sequences, one behind the other. Sizes are those of a bucket: what is not used is marked, so
that a captured CUDA graph serves every pass of the bucket.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LinearPlan:
    """What the linear layers read. A *slot* is a place in a layer's slabs: S (n_slots, H, K, V) and tails
    (n_slots, k - 1, C), which hold cached interiors and running sequences alike.

    reach, back: (N + M,). Of the k - 1 inputs before a row, the nearest ``reach`` are rows of this pass, the others
    stand in the tail of slot ``back`` (-1: zeros). Places N + m are virtual rows just behind sequence m, whose inputs
    before them are its new tail. end: (M,) that row's number; tail_to: (M,) where the tail goes, -1 nowhere.

    run_row, run_n, run_slot, run_tokens, run_compose: (G,). Run g is ``run_n`` rows from ``run_row`` on, then the
    interior of ``run_tokens`` tokens in ``run_slot`` (-1: none) by 0 ``R = T R + S``, 1 ``R = S``, 2 ``R = R + S``.
    Those of sequence m are ``first_run[m]`` to ``first_run[m + 1]``, (M + 1,). state_from, state_to: (M,) slots of R
    before and after; -1 is zero before, and a sequence that is padding after.
    """

    reach: Tensor
    back: Tensor
    end: Tensor
    tail_to: Tensor
    run_row: Tensor
    run_n: Tensor
    run_slot: Tensor
    run_tokens: Tensor
    run_compose: Tensor
    first_run: Tensor
    state_from: Tensor
    state_to: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """What the full-attention layers read: pieces of work, each some rows and a stretch of keys.

    row0, q_end: (P,) the rows that see the keys; equal where the piece is not used. kv, n: (P,) first token slot of
    the pools and number of keys. turn: (P,) row of the turn tables, -1 where queries stay. own: (P,) -1 where every
    row sees every key, else the first key's number among the sequence's own rows: a row sees those up to its own
    number. out: (P,) where the piece's rows begin in the partial outputs.

    row_own: (N,) a row's number among its sequence's own rows. row_first, row_last: (N,) the pieces of its sequence.
    kv_at: (N,) token slot of the row's own key and value, -1 for padding.
    """

    q_start: Tensor
    q_end: Tensor
    kv: Tensor
    n: Tensor
    turn: Tensor
    own: Tensor
    out: Tensor
    row_own: Tensor
    row_first: Tensor
    row_last: Tensor
    kv_at: Tensor
