"""Isolated prefill in torch: each segment from a zero state; what its interior leaves is kept."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.dense_attention import causal
from hypic_rag.engine.passes.recurrence import walk
from hypic_rag.engine.passes.torch_pass import TorchPass
from hypic_rag.engine.plan import Event, Mark, RunRows, build

Kept = defaultdict[int, defaultdict[int, dict[str, Tensor]]]
"""``kept[slot][s]``: the tensors of segment s's interior in a layer."""


def nothing_kept() -> Kept:
    return defaultdict(lambda: defaultdict(dict))


@dataclass(frozen=True)
class TorchIsolation(TorchPass):
    """A packed prefill of segments at positions 0, 1, ... (an isolation prefix before 0).

    ``dropped[s]``: first rows of segment s left out of what is kept.
    """

    dropped: tuple[int, ...]
    kept: Kept = field(default_factory=nothing_kept)

    @classmethod
    def of(cls, positions: Tensor, sizes: Sequence[tuple[int, int]]) -> "TorchIsolation":
        """sizes: of each segment, rows dropped and all rows; at least one of them is kept."""
        plan = build([_events(dropped, n - dropped) for dropped, n in sizes], positions.device)
        return cls(plan, positions, tuple(dropped for dropped, _ in sizes))

    def tails_before(self, slot: int, zero: Tensor) -> list[Tensor]:
        return [zero] * len(self.plan.stretches)

    def keep_tails(self, slot: int, last: Sequence[Tensor]) -> None:
        for s, tail in enumerate(last):
            self.kept[slot][s]["tail"] = tail.clone()

    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor:
        """Keep T and S of each interior, its rows alone."""
        assert layer.family is not None
        inputs, transition = inputs.widened(), layer.family.transition
        columns = layer.k_dim if transition.form == "dense" else 0
        start = inputs.v.new_zeros(len(self.plan.spans), layer.n_heads, layer.k_dim, layer.v_dim + columns)
        out, end, marked = walk(inputs, self.plan, layer, start, _no_splice)
        for s, ((first, stop), dropped) in enumerate(zip(self.plan.spans, self.dropped, strict=True)):
            kept = self.kept[slot][s]
            if columns:
                kept["T"] = end[s, ..., layer.v_dim :].contiguous()
            else:
                kept.update(transition.keep(inputs[first + dropped : stop]))
            # The end state without what the rows before the interior left in it.
            before = transition.compose(marked[s], kept, torch.zeros_like(marked[s]), stop - first - dropped, layer)
            kept["S"] = (end[s, ..., : layer.v_dim] - before).contiguous()
        return out

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        """Attend within every segment alone; its interior's keys (at local positions) and values are kept."""
        outputs = []
        for s, ((start, stop), dropped) in enumerate(zip(self.plan.spans, self.dropped, strict=True)):
            rows, interior = slice(start, stop), slice(start + dropped, stop)
            outputs.append(causal(q[:, rows], k[:, rows], v[:, rows], params, layer.window))
            kept = {"latent": k} if layer.latent else {"K": k, "V": v}
            self.kept[slot][s] = {
                name: t[:, interior].clone(memory_format=torch.contiguous_format) for name, t in kept.items()
            }
        return torch.cat(outputs, dim=1)


def _events(dropped: int, interior: int) -> list[Event]:
    return [RunRows(dropped), Mark(), RunRows(interior)] if dropped else [Mark(), RunRows(interior)]


def _no_splice(sequence: int, index: int, R: Tensor) -> Tensor:
    raise AssertionError("an isolated prefill has no cached interiors")
