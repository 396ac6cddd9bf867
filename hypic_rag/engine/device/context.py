"""What the layers of a model read during a pass on the device, and the kernels they call."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from hypic_kernels import attention, chunked_scan, convolution, scan
from hypic_kernels.pieces import AttentionBucket
from hypic_kernels.plan import AttentionPlan, LinearPlan
from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.slabs import LayerPools
from hypic_rag.engine.device import recurrence
from hypic_rag.engine.device.gated_delta import prepared

if TYPE_CHECKING:
    from hypic_rag.engine.attention import Scoring, Seat
    from hypic_rag.engine.families.rows import Rows
    from hypic_rag.engine.layout import LinearLayer

Turns = tuple[Tensor, Tensor, Tensor]
"""cos, sin (n_turns, D) float32, and with which dim (D,) each mixes."""


@dataclass(frozen=True)
class DevicePass:
    """A pass over active rows whose sequences' states and cached interiors stand in ``pool``.

    positions: (N,) int64, global. turns: of each of the model's rotations. is_spliced: whether a cached interior is
    placed in the pass.
    """

    pool: DevicePool
    linear: LinearPlan
    attention: AttentionPlan
    turns: tuple[Turns, ...]
    positions: Tensor
    bucket: AttentionBucket
    is_spliced: bool

    def arrived(self, slot: int) -> LayerPools:
        """A layer's pools, once the entries that are on their way to it are there; other passes wait before they
        begin, and so their graphs need not."""
        if self.is_spliced:
            self.pool.wait(slot)
        return self.pool.layers[slot]

    def gated_delta(self, slot: int, m: Any, qkv: Tensor, a: Tensor, b: Tensor, strength: float) -> Tensor:
        """Gated DeltaNet from its projections to what the rows read, (N, H, V) of qkv's type.

        slot: the layer's. m: Hugging Face's module, whose convolution and decays are read.
        """
        pools = self.arrived(slot)
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, strength, self.linear, pools.slots["tail"])
        R = pools.slots["S"]
        if self.bucket.max_rows == 1 and not self.is_spliced:  # decoding
            return scan.scan(q, k, v, log_decay, beta, self.linear, R, None, None, "none", qkv.dtype)
        assert pools.matrices is not None and pools.T_at is not None
        return chunked_scan.chunked_scan(
            q, k, v, log_decay, beta, self.linear, R, pools.matrices, pools.T_at, qkv.dtype
        )

    def convolved(self, slot: int, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
        """As ``engine.linear.convolved``."""
        return convolution.convolve(x, weight, bias, silu, self.linear, self.arrived(slot).slots["tail"])

    def recurred(self, slot: int, layer: "LinearLayer", rows: "Rows") -> Tensor:
        """As ``engine.linear.recurred``."""
        is_decoding = self.bucket.max_rows == 1
        return recurrence.recurred(rows, layer, self.arrived(slot), self.linear, self.is_spliced, is_decoding)

    def attend(self, seat: "Seat", q: Tensor, k: Tensor, v: Tensor, scoring: "Scoring") -> Tensor:
        """As ``engine.attention.attend``."""
        pools, rotary = self.arrived(seat.slot).tokens, seat.layer.rotary
        attention.store_kv(k.transpose(0, 1), v.transpose(0, 1), self.attention.kv_at, pools["K"], pools["V"])
        cos, sin, partner = self._no_turns(q) if rotary is None else self.turns[rotary.index]
        out = attention.spliced_attention(
            q.transpose(0, 1), pools["K"], pools["V"], self.attention, cos, sin, partner, scoring.scale,
            softcap=scoring.softcap, sinks=scoring.sinks, n_partial_rows=self.bucket.n_partial_rows,
            max_rows=self.bucket.max_rows,
        )  # fmt: skip
        return out.transpose(0, 1)

    def _no_turns(self, q: Tensor) -> Turns:
        """For a layer without positions: turns by nothing."""
        n, dim = self.attention.turn.shape[0], q.shape[-1]
        cos = torch.ones(n, dim, device=q.device)
        return cos, torch.zeros_like(cos), torch.arange(dim, dtype=torch.int32, device=q.device)
