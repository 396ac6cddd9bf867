"""The first pass of a long prompt on a GPU."""

from dataclasses import dataclass
from typing import Any

import torch
from hypic_kernels.plan import LinearPlan
from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.gated_delta_kernels import prepared
from hypic_rag.engine.passes.many_rows import ManyRows, causal_on_device, isolated_plan
from hypic_rag.engine.passes.prefill_kernels import ChunkedGatedDelta
from hypic_rag.engine.sequence_slots import SequenceSlots


@dataclass(frozen=True)
class DeviceLongPrompt(ManyRows):
    """The first pass of one sequence of many rows and no cached interior; its state and keys go to the pools."""

    pool: DevicePool
    slots: SequenceSlots
    positions: Tensor
    plan: LinearPlan
    cu: Tensor

    @classmethod
    def of(cls, pool: DevicePool, slots: SequenceSlots, positions: Tensor) -> "DeviceLongPrompt":
        n, device = len(positions), positions.device
        plan = isolated_plan([(0, n)], device, tail_to=slots.next_slot)
        return cls(pool, slots, positions, plan, torch.tensor([0, n], device=device))

    def gated_delta_rule(
        self, slot: int, layer: LinearLayer, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        pools = self.pool.layers[slot]
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, beta_scale, self.plan, pools.slots["tail"], qkv.dtype)
        out, end = ChunkedGatedDelta(q, k, v, log_decay, beta, self.cu).run(None)
        pools.slots["S"][self.slots.next_slot] = end[0]
        return out

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        pools, at = self.pool.layers[slot].tokens, slice(self.slots.token_at, self.slots.token_at + k.shape[1])
        pools["K"][at], pools["V"][at] = k.transpose(0, 1), v.transpose(0, 1)
        return causal_on_device(q, k, v, params)
