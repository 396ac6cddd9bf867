"""The assembled pass on a GPU: kernels that read states, keys and cached interiors where they stand in the pools."""

from dataclasses import dataclass
from typing import Any

import torch
from hypic_kernels import attention, chunked_scan, convolution, scan
from hypic_kernels.attention_plan import AttentionBucket
from hypic_kernels.plan import AttentionPlan, LinearPlan
from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerPools
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.device_scan import recurrent_scan
from hypic_rag.engine.passes.gated_delta_kernels import prepared

RopeTables = tuple[Tensor, Tensor, Tensor]
"""cos, sin (n_turns, D) float32, and with which dim (D,) each mixes."""


@dataclass(frozen=True)
class DeviceAssembly:
    """A pass over active rows whose sequences' states and cached interiors stand in ``pool``.

    positions: (N,) int64, global. rope_offsets: of each of the model's rotations. is_spliced: whether a cached interior
    is placed in the pass.
    """

    pool: DevicePool
    linear: LinearPlan
    attention: AttentionPlan
    rope_offsets: tuple[RopeTables, ...]
    positions: Tensor
    bucket: AttentionBucket
    is_spliced: bool

    def arrived(self, slot: int) -> LayerPools:
        """Return a layer's pools, once the entries that are on their way to it are there; other passes wait before they
        begin, and so their graphs need not."""
        if self.is_spliced:
            self.pool.wait(slot)
        return self.pool.layers[slot]

    def gated_delta_rule(
        self, slot: int, layer: LinearLayer, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        pools = self.arrived(slot)
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, beta_scale, self.linear, pools.slots["tail"])
        R = pools.slots["S"]
        if self.bucket.max_rows == 1 and not self.is_spliced:  # decoding
            return scan.scan(q, k, v, log_decay, beta, self.linear, R, None, None, "none", qkv.dtype)
        assert pools.matrices is not None and pools.T_at is not None
        return chunked_scan.chunked_scan(
            q, k, v, log_decay, beta, self.linear, R, pools.matrices, pools.T_at, qkv.dtype
        )

    def causal_conv1d(
        self, slot: int, layer: LinearLayer, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
    ) -> Tensor:
        return convolution.convolve(x, weight, bias, silu, self.linear, self.arrived(slot).slots["tail"])

    def token_shift(self, slot: int, layer: LinearLayer, x: Tensor) -> Tensor:
        raise NotImplementedError("no kernel shifts tokens: models that do run in torch (backends.choice)")

    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor:
        is_decoding = self.bucket.max_rows == 1
        return recurrent_scan(inputs, layer, self.arrived(slot), self.linear, self.is_spliced, is_decoding)

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        pools, rotary = self.arrived(slot).tokens, layer.rotary
        attention.store_kv(k.transpose(0, 1), v.transpose(0, 1), self.attention.kv_at, pools["K"], pools["V"])
        cos, sin, partner = self._no_offsets(q) if rotary is None else self.rope_offsets[rotary.index]
        out = attention.spliced_attention(
            q.transpose(0, 1), pools["K"], pools["V"], self.attention, cos, sin, partner, params.scale,
            softcap=params.softcap, sinks=params.sinks, n_partial_rows=self.bucket.n_partial_rows,
            max_rows=self.bucket.max_rows,
        )  # fmt: skip
        return out.transpose(0, 1)

    def _no_offsets(self, q: Tensor) -> RopeTables:
        """Make tables that turn by nothing, for a layer without positions."""
        n, dim = self.attention.turn.shape[0], q.shape[-1]
        cos = torch.ones(n, dim, device=q.device)
        return cos, torch.zeros_like(cos), torch.arange(dim, dtype=torch.int32, device=q.device)
