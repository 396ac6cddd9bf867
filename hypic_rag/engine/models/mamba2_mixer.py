"""The Mamba-2 mixer, as Bamba, Granite 4, Falcon-H1, Nemotron-H and Zamba2 have it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import mamba2
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer


class Mamba2(Mixer):
    """What differs between them are names (``sizes``) and what is done around the recurrence."""

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(
            mamba2.FAMILY,
            m.num_heads,
            m.ssm_state_size,
            m.head_dim,
            channels=m.conv_dim,
            kernel=m.conv_kernel_size,
        )

    def mix(self, m: Any, x: Tensor) -> Tensor:
        gate, conv_in, dt = self.project(m, x).split((m.intermediate_size, m.conv_dim, m.num_heads), dim=-1)
        out = self.read_states(m, self.causal_conv1d(conv_in, m.conv1d.weight, m.conv1d.bias), dt)
        return m.out_proj(self.gated(m, out, gate).to(x.dtype))  # type: ignore[no-any-return]

    def project(self, m: Any, x: Tensor) -> Tensor:
        """Project x (N, hidden) to (N, gate + channels + H)."""
        return m.in_proj(x)  # type: ignore[no-any-return]

    def gated(self, m: Any, out: Tensor, gate: Tensor) -> Tensor:
        """out, gate: (N, H * V)."""
        return m.norm(out[None], gate[None])[0]  # type: ignore[no-any-return]

    def read_states(self, m: Any, conv_out: Tensor, dt: Tensor) -> Tensor:
        """conv_out: (N, channels), x, B and C; dt: (N, H). Returns (N, H * V), with the skip ``D x``."""
        widths = (m.intermediate_size, m.n_groups * m.ssm_state_size, m.n_groups * m.ssm_state_size)
        x, B, C = (t.float() for t in conv_out.split(widths, dim=-1))
        x = x.view(len(x), m.num_heads, m.head_dim)
        B, C = (t.view(len(x), m.n_groups, -1) for t in (B, C))
        dt = torch.clamp(F.softplus(dt.float() + m.dt_bias.float()), *m.time_step_limit)
        log_decay = -m.A_log.float().exp() * dt
        out = self.recurrent_scan(RecurrenceInputs(C, B, x * dt[..., None], log_decay))
        skip: Tensor = m.D.float()[:, None] * x
        return (out + skip).flatten(1).to(conv_out.dtype)
