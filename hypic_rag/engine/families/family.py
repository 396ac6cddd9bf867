"""What the engine asks of a recurrence; one file beside this answers for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.transition import Transition


class Running(Protocol):
    """Chunks on their way; see ``chunks.ChunkRunner``."""

    def advance(self, start: int, state: Tensor) -> Tensor: ...

    def outputs(self) -> Tensor: ...


@dataclass(frozen=True)
class Family:
    """A linear recurrence ``S_t = T_t S_{t-1} + k_t v_t^T`` over a state (H, K, V).

    run: chunks of rows, (B, C) row numbers, ready to run from any state; the form for long segments.
    step: one token, as the paper has it: ``step(S, row) -> (S', out)`` with S (H, K, V), out (H, V). The oracle.
    max_chunk: rows a chunk can have at most. source: the paper. has_kernel: whether ``hypic_kernels.scan`` does it: a
    row decays the state, writes ``k v^T``, by the delta rule where it has a beta, and reads ``q^T S`` of the result.
    """

    name: str
    source: str
    transition: Transition
    run: Callable[[RecurrenceInputs, Tensor], Running]
    step: Callable[[Tensor, RecurrenceInputs], tuple[Tensor, Tensor]]
    max_chunk: int = 64
    has_kernel: bool = False
