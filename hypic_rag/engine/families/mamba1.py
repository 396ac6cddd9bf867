"""Mamba-1: ``S_t = exp(A dt_t) S_{t-1} + dt_t B_t x_t``, read as ``C_t^T S_t``; a channel is a head with one value.

q is C, k is B, v is dt x, A (H, K) the layer's rates; the skip ``D x`` belongs to the layer. With one value a head a
product over pairs of rows would cost more than the states themselves: a chunk's states are scanned, all at once, in
log2(C) doublings (Hillis and Steele), which only multiply decays and so cannot overflow.
"""

from torch import Tensor

from hypic_rag.engine.families.chunks import gather
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.gla import step
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.transition import TimeSteps


class Scan:
    """See ``chunks.ChunkRunner``. Chunks are gathered as they come: states of all rows at once would not fit."""

    def __init__(self, rows: RecurrenceInputs, index: Tensor):
        self.rows, self.index = rows, index
        self._out = rows.v.new_empty(index.shape[0], rows.q.shape[1], index.shape[1], 1)

    def advance(self, start: int, state: Tensor) -> Tensor:
        """state: (B, H, K, 1). The state after chunks ``start, start + 1, ...``, one for each of its sequences."""
        index = self.index[start : start + state.shape[0]]
        q, k, v, log_decay = (gather(t, index) for t in (self.rows.q, self.rows.k, self.rows.v, self.rows.log_decay))
        states, decays = k * v, log_decay.exp()  # (B, H, C, K): of the last 1, 2, 4, ... rows alone
        reach = 1
        while reach < index.shape[1]:
            earlier, decayed = states[..., :-reach, :].clone(), decays[..., :-reach, :].clone()
            states[..., reach:, :].addcmul_(decays[..., reach:, :], earlier)
            decays[..., reach:, :].mul_(decayed)
            reach *= 2
        states.addcmul_(decays, state.mT)
        self._out[start : start + state.shape[0]] = (q * states).sum(-1, keepdim=True)
        return states[..., -1:, :].mT

    def outputs(self) -> Tensor:
        """Return what the rows of all chunks that were run read, (B, H, C, 1)."""
        return self._out


FAMILY = Family("mamba1", "Mamba, arXiv 2312.00752", TimeSteps(), Scan, step, has_kernel=True)
