"""Chunks of the delta rules: ``S_t = (I - b_t k_t k_t^T) g_t S_{t-1} + b_t k_t v_t^T``, g a scalar or a diagonal."""

import torch
from torch import Tensor

from hypic_rag.engine.families.chunks import ChunkRunner, Chunks, decayed_products, gather, log_decays, solve_unit_lower
from hypic_rag.engine.families.inputs import RecurrenceInputs


def run_delta(rows: RecurrenceInputs, index: Tensor) -> ChunkRunner:
    """Prepare the chunks of a delta rule. index: (B, C) int64, row numbers; ``N`` (one past the last row) pads
    and leaves the state as it is."""
    assert rows.beta is not None
    q, k, v = (gather(t, index) for t in (rows.q, rows.k, rows.v))
    beta = gather(rows.beta[..., None], index)
    total = log_decays(rows.log_decay, index).cumsum(-2)
    decay, k_beta = total.exp(), k * beta
    if index.shape[1] == 1:  # decoding
        scores = (q * k).sum(-1, keepdim=True)
        return ChunkRunner(Chunks(v * beta, k_beta * decay, q * decay, k.mT, scores, decay.mT))
    system, scores = decayed_products((k_beta, q), k, total, total)
    solved = solve_unit_lower(system, torch.cat((v * beta, k_beta * decay), dim=-1))
    u, w = (t.contiguous() for t in solved.split((v.shape[-1], k.shape[-1]), dim=-1))
    to_end = (total[..., -1:, :] - total).exp()
    return ChunkRunner(Chunks(u, w, q * decay, (k * to_end).mT, scores, decay[..., -1:, :].mT))


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Scale the last axis to length one, in float32, as the delta rules want keys."""
    x = x.float()
    return x * (x * x).sum(-1, keepdim=True).add(eps).rsqrt()
