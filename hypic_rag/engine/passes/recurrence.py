"""The recurrence's walk over the rows of a pass, in chunks, with what happens between them."""

from collections.abc import Callable

import torch
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.plan import Mark, Plan


def walk(
    inputs: RecurrenceInputs,
    plan: Plan,
    layer: LinearLayer,
    state: Tensor,
    splice: Callable[[int, int, Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Run all rows of a pass.

    state: (B, H, K, V') float32, one a sequence; it is not modified. ``splice(sequence, index, R)`` returns the
    state after a cached interior. V' = V + K where transitions are wanted: a mark sets the last K columns to the
    identity and notes the rest.

    Returns what the rows read (N, H, V), the states after the last row (B, H, K, V'), and the states at the marks
    (B, H, K, V), zero where there is none; in the sequences' order.
    """
    assert layer.family is not None
    steps = plan.steps(layer.family.max_chunk)
    running = layer.family.run(inputs, steps.chunk_rows)
    n_values = inputs.v.shape[-1]
    order = list(steps.order)
    X = state[order]
    marked = torch.zeros_like(X[..., :n_values])
    start = 0
    for step, events in enumerate(steps.before):
        for place, event in events:
            if isinstance(event, Mark):
                marked[place] = X[place, ..., :n_values]
                if X.shape[-1] > n_values:
                    X[place, ..., n_values:] = torch.eye(X.shape[-2], device=X.device)
            else:
                X[place] = splice(order[place], event.index, X[place])
        if step < len(steps.active):
            n = steps.active[step]
            X[:n] = running.advance(start, X[:n])
            start += n
    back = torch.argsort(torch.tensor(order, device=X.device))
    out = running.outputs().transpose(1, 2).flatten(0, 1)  # (n_chunks * C, H, V)
    return out[steps.gather], X[back], marked[back]
