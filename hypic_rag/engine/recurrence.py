"""Walk a plan through one linear layer: chunks of live rows, and cached interiors composed between them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from hypic_rag.engine.families import gdn
from hypic_rag.engine.plan import Mark, Plan

Compose = Literal["exact", "last_state", "add"]


@dataclass
class Walk:
    """out: (N, H, V). state: (B, H, K, V'), after the last row, in the sequences' order.

    ``marked``: (B, H, K, V), each sequence's state at its mark (zero where it has none).
    """

    out: Tensor
    state: Tensor
    marked: Tensor = field(default_factory=lambda: torch.empty(0))


def walk(rows: gdn.Rows, plan: Plan, state: Tensor, splice: Callable[[int, int, Tensor], Tensor]) -> Walk:
    """Run all rows of a pass.

    state: (B, H, K, V') float32, one a sequence; it is not modified. ``splice(sequence, index, R)`` returns the
    state after a cached interior. V' = V + K where transitions are wanted: a mark sets the last K columns to the
    identity and notes the rest.
    """
    runner = gdn.Runner(gdn.chunk(rows, plan.chunk_rows))
    n_values = rows.v.shape[-1]
    order = list(plan.order)
    X = state[order]
    marked = torch.zeros_like(X[..., :n_values])
    start = 0
    for step, events in enumerate(plan.before):
        for place, event in events:
            if isinstance(event, Mark):
                marked[place] = X[place, ..., :n_values]
                X[place, ..., n_values:] = torch.eye(X.shape[-2], device=X.device)
            else:
                X[place] = splice(order[place], event.index, X[place])
        if step < len(plan.active):
            n = plan.active[step]
            X[:n] = runner.advance(start, X[:n])
            start += n
    back = torch.argsort(torch.tensor(order, device=X.device))
    out = runner.outputs().transpose(1, 2).flatten(0, 1)  # (n_chunks * C, H, V)
    return Walk(out[plan.gather], X[back], marked[back])


def splicer(
    compose: Compose, transition: Callable[[int, int], tuple[Tensor, Tensor]]
) -> Callable[[int, int, Tensor], Tensor]:
    """How a cached interior moves the running state; ``transition(sequence, index)`` gives its (T, S).

    ``exact`` is ``T R + S``; ``last_state`` takes T as zero (arXiv 2608.11231); ``add`` takes it as the identity.
    """

    def splice(sequence: int, index: int, R: Tensor) -> Tensor:
        T, S = transition(sequence, index)
        if compose == "last_state":
            return S
        return R + S if compose == "add" else gdn.compose(R, T, S)

    return splice
