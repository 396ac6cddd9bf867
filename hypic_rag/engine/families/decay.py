"""Chunks of the recurrences that only decay: ``S_t = g_t S_{t-1} + k_t v_t^T`` with g a scalar or a diagonal."""

from torch import Tensor

from hypic_rag.engine.families.chunks import ChunkRunner, Chunks, decayed_products, decays_before, gather, log_decays
from hypic_rag.engine.families.inputs import RecurrenceInputs


def run_decay(rows: RecurrenceInputs, index: Tensor) -> ChunkRunner:
    """Prepare the chunks of a recurrence that only decays. index: (B, C) int64, row numbers; ``N`` (one past the last
    row) pads and leaves the state as it is."""
    q, k, v = (gather(t, index) for t in (rows.q, rows.k, rows.v))
    total = log_decays(rows.log_decay, index).cumsum(-2)
    if rows.bonus is None:
        seen_from = total
        [scores] = decayed_products((q,), k, total, total)
    else:  # the state before the row is read, and the row itself through the bonus
        seen_from = decays_before(total)
        [scores] = decayed_products((q,), k, seen_from, total, diagonal=-1)
        scores.diagonal(dim1=-2, dim2=-1).add_((q * rows.bonus[:, None] * k).sum(-1))
    to_end = (total[..., -1:, :] - total).exp()
    decay = total[..., -1:, :].exp().mT
    return ChunkRunner(Chunks(v, None, q * seen_from.exp(), (k * to_end).mT, scores, decay))
