"""Jamba, dense and mixture of experts: Mamba-1 layers and a few full-attention layers without rotary."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import mamba1
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer

MODEL_TYPES = ("jamba",)


class Mamba1(Mixer):
    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(
            mamba1.FAMILY,
            m.intermediate_size,
            m.ssm_state_size,
            1,
            channels=m.intermediate_size,
            kernel=m.conv_kernel_size,
            rates=-m.A_log.detach().float().exp(),
        )

    def mix(self, m: Any, x: Tensor) -> Tensor:
        conv_in, gate = m.in_proj(x).chunk(2, dim=-1)
        conv_out = self.causal_conv1d(conv_in, m.conv1d.weight, m.conv1d.bias)
        dt, B, C = m.x_proj(conv_out).split((m.time_step_rank, m.ssm_state_size, m.ssm_state_size), dim=-1)
        dt, B, C = self.normed(m, dt, B, C)
        out = self.read_states(m, conv_out.float(), F.softplus(m.dt_proj(dt).float()), B.float(), C.float())
        return m.out_proj((out * F.silu(gate.float())).to(x.dtype))  # type: ignore[no-any-return]

    def normed(self, m: Any, dt: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dt: (N, rank), before it is widened to the channels; B, C: (N, K)."""
        return m.dt_layernorm(dt), m.b_layernorm(B), m.c_layernorm(C)

    def read_states(self, m: Any, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """x, dt: (N, channels), each a head with one value; B, C: (N, K). Returns (N, channels), with ``D x``."""
        log_decay = -m.A_log.float().exp() * dt[..., None]
        out = self.recurrent_scan(RecurrenceInputs(C[:, None], B[:, None], (dt * x)[..., None], log_decay, dt=dt))
        skip: Tensor = m.D.float() * x
        return out.squeeze(-1) + skip


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    for layer in model.model.layers:
        if hasattr(layer, "mamba"):
            layer.mamba = Mamba1(layer.mamba, cache_spec)
        else:
            AttentionHandle.give(layer.self_attn, config, cache_spec)
