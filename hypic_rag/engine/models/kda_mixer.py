"""The Kimi Delta Attention mixer, as Kimi Linear and Ling 3 have it."""

from typing import Any

import torch
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import kda
from hypic_rag.engine.families.delta import l2norm
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models.mixer import Mixer


class KimiDeltaAttention(Mixer):
    """The forget gate is the model's own module; what else differs is where the output gate comes from."""

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(
            kda.FAMILY, m.num_heads, m.head_dim, m.head_dim, channels=m.conv_dim, kernel=m.conv_kernel_size
        )

    def output_gate(self, m: Any, x: Tensor) -> Tensor:
        """Return the output gate before the sigmoid, (N, H * V)."""
        raise NotImplementedError

    def mix(self, m: Any, x: Tensor) -> Tensor:
        qkv = torch.cat((m.q_proj(x), m.k_proj(x), m.v_proj(x)), dim=-1)
        qkv = self.causal_conv1d(qkv, m.conv1d.weight, m.conv1d.bias)
        q, k, v = (t.view(-1, m.num_heads, m.head_dim) for t in qkv.chunk(3, dim=-1))
        log_decay = m.forget_gate(x[None])[0].float()  # (N, H, K)
        beta = m.b_proj(x).sigmoid().float()
        q = l2norm(q) * m.head_dim**-0.5
        out = self.recurrent_scan(RecurrenceInputs(q, l2norm(k), v.float(), log_decay, beta)).to(x.dtype)
        gated = m.o_norm(out, self.output_gate(m, x).view_as(out))
        return m.o_proj(gated.flatten(1))  # type: ignore[no-any-return]
