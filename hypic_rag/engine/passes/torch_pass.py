"""What both passes in torch share: short convolutions, token shifts, and Gated DeltaNet made of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.families.delta import l2norm
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.passes.convolution import convolve, previous, tails
from hypic_rag.engine.plan import Plan


@dataclass(frozen=True)
class TorchPass(ABC):
    """plan: whose rows are whose. positions: (N,) int64, of the rows."""

    plan: Plan
    positions: Tensor

    @abstractmethod
    def tails_before(self, slot: int, zero: Tensor) -> list[Tensor]:
        """Return for each stretch of rows the (k - 1, C) rows that stood before it; ``zero`` where none did."""

    @abstractmethod
    def keep_tails(self, slot: int, last: Sequence[Tensor]) -> None:
        """Keep the last (k - 1, C) rows of each sequence for those after them."""

    @abstractmethod
    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor: ...

    def causal_conv1d(
        self, slot: int, layer: LinearLayer, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
    ) -> Tensor:
        return convolve(x, self.plan, self._reach_back(slot, layer, x), weight, bias, silu)

    def token_shift(self, slot: int, layer: LinearLayer, x: Tensor) -> Tensor:
        return previous(x, self.plan, self._reach_back(slot, layer, x))

    def gated_delta_rule(
        self, slot: int, layer: LinearLayer, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        dtype = qkv.dtype
        qkv = self.causal_conv1d(slot, layer, qkv, m.conv1d.weight.squeeze(1), m.conv1d.bias, silu=True)
        q, k, v = qkv.split((m.key_dim, m.key_dim, m.value_dim), dim=-1)
        q, k = (l2norm(t.reshape(-1, m.num_k_heads, m.head_k_dim)) for t in (q, k))
        v = v.reshape(-1, m.num_v_heads, m.head_v_dim).float()
        log_decay = -m.A_log.float().exp() * F.softplus(a.float() + m.dt_bias)
        beta = b.sigmoid().float() * beta_scale
        inputs = RecurrenceInputs(q * m.head_k_dim**-0.5, k, v, log_decay, beta=beta)
        return self.recurrent_scan(slot, layer, inputs).to(dtype)

    def _reach_back(self, slot: int, layer: LinearLayer, x: Tensor) -> list[Tensor]:
        starts = self.tails_before(slot, x.new_zeros(layer.kernel - 1, layer.channels))
        self.keep_tails(slot, tails(x, self.plan, starts))
        return starts
