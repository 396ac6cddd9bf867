"""The assembled pass in torch: active rows over cached interiors, which stand where the entries were placed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.dense_attention import causal
from hypic_rag.engine.passes.recurrence import walk
from hypic_rag.engine.passes.torch_pass import TorchPass
from hypic_rag.engine.passes.visible_keys import VisibleKeys, joined_attention, spliced_attention
from hypic_rag.engine.policy import Compose
from hypic_rag.engine.state import KVCache, LinearState, TorchSequence

QUERY_BLOCK = 512  # rows a block, so that scores stay small where many live rows see a long past
MANY_ROWS = 128  # beyond it, moving the keys together costs less than what torch's own attention saves

RopeOffsets = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TorchAssembly(TorchPass):
    """Layers read and advance ``sequences``, which the plan's numbers refer to.

    ``rope_offsets[s][r]``: cos and sin (n_interiors, dims) that turn queries, by the model's rotation r, to each
    interior of sequence s.
    """

    sequences: tuple[TorchSequence, ...]
    compose: tuple[Compose, ...]
    rope_offsets: tuple[tuple[RopeOffsets, ...], ...]

    def tails_before(self, slot: int, zero: Tensor) -> list[Tensor]:
        starts = []
        for stretch in self.plan.stretches:
            sequence = self.sequences[stretch.sequence]
            if stretch.before is not None:
                starts.append(sequence.segments[stretch.before].layers[slot]["tail"])
            else:
                tail = sequence.linear.setdefault(slot, LinearState()).tail
                starts.append(zero if tail is None else tail)
        return starts

    def keep_tails(self, slot: int, last: Sequence[Tensor]) -> None:
        for sequence, after, tail in zip(self.sequences, self.plan.last_splice, last, strict=True):
            own = tail if after is None else sequence.segments[after].layers[slot]["tail"]
            sequence.linear.setdefault(slot, LinearState()).tail = own.clone()

    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor:
        inputs = inputs.widened()
        states = [sequence.linear.setdefault(slot, LinearState()) for sequence in self.sequences]
        zero = inputs.v.new_zeros(layer.n_heads, layer.k_dim, layer.v_dim)
        start = torch.stack([zero if state.R is None else state.R for state in states])
        out, end, _ = walk(inputs, self.plan, layer, start, partial(self._splice, slot, layer))
        for state, R in zip(states, end, strict=True):
            state.R = R.clone()
        return out

    def _splice(self, slot: int, layer: LinearLayer, s: int, index: int, R: Tensor) -> Tensor:
        """Return the state of sequence s after its cached interior ``index``, from the state R before it."""
        assert layer.family is not None
        interior = self.sequences[s].segments[index]
        kept = interior.layers[slot]
        S = kept["S"]
        if layer.rotary is not None:  # kept at local positions; exact because T is a scalar there
            cos, sin = self.rope_offsets[s][layer.rotary.index]
            S = layer.rotary.turn(S.mT, cos[index], -sin[index]).mT
        if self.compose[s] == "exact":
            return layer.family.transition.compose(R, kept, S, interior.n_tokens, layer)
        return R + S if self.compose[s] == "add" else S

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        outputs = []
        for s, (start, stop) in enumerate(self.plan.spans):
            rows = slice(start, stop)
            outputs.append(self._attend_sequence(slot, layer, s, q[:, rows], k[:, rows], v[:, rows], params))
        return torch.cat(outputs, dim=1)

    def _attend_sequence(
        self, slot: int, layer: AttentionLayer, s: int, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        sequence, n = self.sequences[s], q.shape[1]
        own = sequence.kv.get(slot)
        if own is None:
            own = sequence.kv[slot] = KVCache.empty(k, None if layer.latent else v, max(sequence.capacity, n))
        past = own.n
        own.append(k, v)
        if past == 0 and not sequence.segments:
            return causal(q, k, v, params, layer.window)
        offsets = None if layer.rotary is None else self.rope_offsets[s][layer.rotary.index]
        visible = VisibleKeys(sequence, own, slot, layer, offsets)
        how = spliced_attention if n <= MANY_ROWS or not params.is_plain else joined_attention
        blocks = [how(visible, past + i, q[:, i : i + QUERY_BLOCK], params) for i in range(0, n, QUERY_BLOCK)]
        return torch.cat(blocks, dim=1)
