"""The parts of a linear layer that read other rows: short convolution, token shift, and the recurrence.

Each starts from what stands before the rows (a cached interior, or the sequence's own past) and leaves what the
next pass or the segment's entry needs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hypic_rag.engine.context import Context, Isolation
from hypic_rag.engine.convolution import convolve, previous, tails
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import LinearLayer
from hypic_rag.engine.plan import Mark, Plan
from hypic_rag.engine.state import LinearState


def convolved(
    context: Context, slot: int, layer: LinearLayer, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
) -> Tensor:
    """The depthwise causal convolution. x: (N, C); weight: (C, k). Returns (N, C) in x's dtype."""
    return convolve(x, context.plan, _reach_back(context, slot, layer, x), weight, bias, silu)


def shifted(context: Context, slot: int, layer: LinearLayer, x: Tensor) -> Tensor:
    """The row before each row, zero before the first. x: (N, C)."""
    return previous(x, context.plan, _reach_back(context, slot, layer, x))


def recurred(context: Context, slot: int, layer: LinearLayer, rows: Rows) -> Tensor:
    """The recurrence over all rows of the pass. Returns what they read, (N, H, V) float32."""
    assert layer.family is not None
    if isinstance(context, Isolation):
        return _isolated(context, slot, layer, rows)
    plan, sequences = context.plan, context.sequences
    states = [sequence.linear.setdefault(slot, LinearState()) for sequence in sequences]
    zero = rows.v.new_zeros(layer.n_heads, layer.k_dim, layer.v_dim)

    def splice(s: int, index: int, R: Tensor) -> Tensor:
        interior = sequences[s].interiors[index]
        kept = interior.layers[slot]
        S = kept["S"]
        if layer.rotary is not None:  # kept at local positions; exact because T is a scalar there
            cos, sin = context.turns[s][layer.rotary.index]
            S = layer.rotary.turn(S.mT, cos[index], -sin[index]).mT
        if context.compose[s] == "exact":
            return layer.family.transition.compose(R, kept, S, interior.n_tokens, layer)  # type: ignore[union-attr]
        return R + S if context.compose[s] == "add" else S

    start = torch.stack([zero if state.R is None else state.R for state in states])
    out, end, _ = walk(rows, plan, layer, start, splice)
    for state, R in zip(states, end, strict=True):
        state.R = R.clone()
    return out


def _isolated(context: Isolation, slot: int, layer: LinearLayer, rows: Rows) -> Tensor:
    """From zero; keep T and S of each interior, its rows alone."""
    assert layer.family is not None
    plan, transition = context.plan, layer.family.transition
    columns = layer.k_dim if transition.name == "dense" else 0
    start = rows.v.new_zeros(len(plan.spans), layer.n_heads, layer.k_dim, layer.v_dim + columns)
    out, end, marked = walk(rows, plan, layer, start, _no_splice)
    for s, ((first, stop), dropped) in enumerate(zip(plan.spans, context.dropped, strict=True)):
        kept = context.kept[slot][s]
        if columns:
            kept["T"] = end[s, ..., layer.v_dim :].contiguous()
        else:
            kept.update(transition.keep(rows[first + dropped : stop]))
        # The end state without what the rows before the interior left in it.
        before = transition.compose(marked[s], kept, torch.zeros_like(marked[s]), stop - first - dropped, layer)
        kept["S"] = (end[s, ..., : layer.v_dim] - before).contiguous()
    return out


def walk(
    rows: Rows, plan: Plan, layer: LinearLayer, state: Tensor, splice: Callable[[int, int, Tensor], Tensor]
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
    running = layer.family.run(rows, steps.chunk_rows)
    n_values = rows.v.shape[-1]
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


def _reach_back(context: Context, slot: int, layer: LinearLayer, x: Tensor) -> list[Tensor]:
    """What stood before each stretch of rows; notes what the rows leave to those after them."""
    starts = _tails_before(context, slot, layer, x)
    _keep_tails(context, slot, tails(x, context.plan, starts))
    return starts


def _tails_before(context: Context, slot: int, layer: LinearLayer, x: Tensor) -> list[Tensor]:
    """For each stretch of rows the (k - 1, C) rows that stood before it."""
    zero = x.new_zeros(layer.kernel - 1, layer.channels)
    if isinstance(context, Isolation):
        return [zero] * len(context.plan.stretches)
    starts = []
    for stretch in context.plan.stretches:
        sequence = context.sequences[stretch.sequence]
        if stretch.before is not None:
            starts.append(sequence.interiors[stretch.before].layers[slot]["tail"])
        else:
            tail = sequence.linear.setdefault(slot, LinearState()).tail
            starts.append(zero if tail is None else tail)
    return starts


def _keep_tails(context: Context, slot: int, last: Sequence[Tensor]) -> None:
    for s, tail in enumerate(last):
        if isinstance(context, Isolation):
            context.kept[slot][s]["tail"] = tail.clone()
        else:
            sequence, after = context.sequences[s], context.plan.last_splice[s]
            own = tail if after is None else sequence.interiors[after].layers[slot]["tail"]
            sequence.linear.setdefault(slot, LinearState()).tail = own.clone()


def _no_splice(sequence: int, index: int, R: Tensor) -> Tensor:
    raise AssertionError("an isolated prefill has no cached interiors")
