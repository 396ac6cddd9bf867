"""RWKV-7: ``S_t = diag(g_t) S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T``, read as ``q_t^T S_t``.

a is the removal key, negated, and b the same key times its in-context learning rate. What rows write has two parts,
``b p^T`` and ``k v^T``, where ``p = a^T S`` depends on the rows before: one triangular system a chunk.
"""

import torch
from torch import Tensor

from hypic_rag.engine.families.chunks import (
    ChunkRunner,
    Chunks,
    decayed_products,
    decays_before,
    gather,
    log_decays,
    solve_unit_lower,
)
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import outer, read
from hypic_rag.engine.families.transition import Dense


def step(S: Tensor, row: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """log_decay, a, b: (H, K)."""
    assert row.a is not None and row.b is not None
    S = S * row.log_decay.exp()[..., None] + outer(row.b, read(S, row.a)) + outer(row.k, row.v)
    return S, read(S, row.q)


def run(rows: RecurrenceInputs, index: Tensor) -> ChunkRunner:
    """Prepare the rows' chunks. index: (B, C) int64, row numbers; ``N`` (one past the last row) pads
    and leaves the state as it is."""
    assert rows.a is not None and rows.b is not None
    q, k, v, a, b = (gather(t, index) for t in (rows.q, rows.k, rows.v, rows.a, rows.b))
    total = log_decays(rows.log_decay, index).cumsum(-2)
    before = decays_before(total)
    [ab] = decayed_products((a,), b, before, total, diagonal=-1)
    [ak] = decayed_products((a,), k, before, total, diagonal=-1)
    solved = solve_unit_lower(-ab, torch.cat((ak @ v, a * before.exp()), dim=-1))  # p = the first part + the second R
    p, reads = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    [qb], [qk] = (decayed_products((q,), x, total, total) for x in (b, k))
    to_end = (total[..., -1:, :] - total).exp()
    return ChunkRunner(
        Chunks(
            u=torch.cat((p, v), dim=-2),
            w=torch.cat((-reads, torch.zeros_like(reads)), dim=-2),
            q=q * total.exp(),
            k=torch.cat((b * to_end, k * to_end), dim=-2).mT,
            scores=torch.cat((qb, qk), dim=-1),
            decay=total[..., -1:, :].exp().mT,
        )
    )


FAMILY = Family("rwkv7", "RWKV-7 (Goose), arXiv 2503.14456", Dense(), run, step, 16)
