"""Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434), as Kimi Linear and Ling 3 have it."""

from typing import Any

import torch
from torch import Tensor, nn

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.rotary import Rotary


class LatentAttention(nn.Module):
    """Takes the place of ``original``, whose weights it reads, and keeps of a row the latent and the shared key.

    Hugging Face expands every latent to a key and a value a head. Here the expansion is moved to the other factor of
    each product: queries go to the latent's space through the key half of ``kv_b_proj``, what they read comes back
    through the value half. So all heads share one key of kv_lora_rank + qk_rope_head_dim dims, whose first are the
    value. ``rotated`` and ``gated`` are what models add.
    """

    def __init__(self, original: Any, cache_spec: CacheSpec, rotary: Rotary | None = None):
        super().__init__()
        self.original = original
        rank = original.kv_lora_rank
        layer = AttentionLayer(1, rank + original.qk_rope_head_dim, rank, rotary, latent=True)
        self.handle = AttentionHandle.take(layer, cache_spec)

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor] | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """hidden_states: (1, N, hidden); position_embeddings: cos and sin, (1, N, qk_rope_head_dim) each."""
        m, x = self.original, hidden_states[0]
        q = m.q_proj(x) if m.q_lora_rank is None else m.q_b_proj(m.q_a_layernorm(m.q_a_proj(x)))
        q = q.view(len(x), m.num_heads, m.qk_head_dim).transpose(0, 1)
        q_nope, q_rot = q.split((m.qk_nope_head_dim, m.qk_rope_head_dim), dim=-1)
        latent, k_rot = m.kv_a_proj_with_mqa(x)[None].split((m.kv_lora_rank, m.qk_rope_head_dim), dim=-1)
        q_rot, k_rot = (self.rotated(t, position_embeddings) for t in (q_rot, k_rot))

        to_key, to_value = halves(m)
        q = torch.cat((q_nope @ to_key, q_rot), dim=-1)
        k = torch.cat((m.kv_a_layernorm(latent), k_rot), dim=-1)
        read = self.handle.attend(q, k, k[..., : m.kv_lora_rank], AttentionParams(m.scaling))
        out = self.gated(m, x, (read @ to_value.mT).transpose(0, 1))
        return m.o_proj(out.flatten(1))[None], None

    def rotated(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> Tensor:
        """x: (H, N, qk_rope_head_dim). Without positions these dims are as they are."""
        return x

    def gated(self, m: Any, x: Tensor, out: Tensor) -> Tensor:
        """x: (N, hidden); out: (N, H, v_head_dim), before the output projection."""
        return out


def halves(m: Any) -> tuple[Tensor, Tensor]:
    """Split what makes keys and values of the latent: (H, qk_nope_head_dim, rank), (H, v_head_dim, rank)."""
    weight = m.kv_b_proj.weight.view(m.num_heads, -1, m.kv_lora_rank)
    to_key, to_value = weight.split((m.qk_nope_head_dim, m.v_head_dim), dim=1)
    return to_key, to_value
