"""DeltaNet, Gated DeltaNet and KDA of flash-linear-attention: states that a delta rule corrects."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import deltanet, gdn, kda
from hypic_rag.engine.families.delta import l2norm
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models import fla_mixer
from hypic_rag.engine.models.fla_mixer import FlaMixer

MODEL_TYPES = ("delta_net", "gated_deltanet", "kda")
REGISTERED_BY = fla_mixer.PACKAGE


class DeltaRule(FlaMixer):
    """What differs is how the state decays (``log_decay``) and how queries and keys are normalized (``normalized``)."""

    family: Family

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        return LinearLayer(self.family, self.heads(m), m.head_k_dim, m.head_v_dim, *self.convolution(m))

    def heads(self, m: Any) -> int:
        """Count the heads of values; a head of queries and keys may serve several."""
        return int(m.num_v_heads)

    def activated(self, m: Any) -> tuple[bool, bool, bool]:
        return True, True, True

    def mix(self, m: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(m, x)
        q, k = (self.normalized(m, t).repeat_interleave(v.shape[1] // t.shape[1], dim=1) for t in (q, k))
        rows = RecurrenceInputs(q * m.head_k_dim**-0.5, k, v.float(), self.log_decay(m, x), self.beta(m, x))
        out = self.recurrent_scan(rows).to(x.dtype)
        out = m.o_norm(out, m.g_proj(x).view_as(out)) if hasattr(m, "g_proj") else m.o_norm(out)
        return m.o_proj(out.flatten(1))  # type: ignore[no-any-return]

    def normalized(self, m: Any, x: Tensor) -> Tensor:
        """Normalize a query or key, (N, H, K) float32."""
        return l2norm(x)

    def beta(self, m: Any, x: Tensor) -> Tensor:
        """Return the write strengths (N, H); up to two where negative eigenvalues are allowed."""
        beta: Tensor = m.b_proj(x).float().sigmoid()
        return 2 * beta if m.allow_neg_eigval else beta

    def log_decay(self, m: Any, x: Tensor) -> Tensor:
        """Return the log decays, (N, H) or (N, H, K)."""
        raise NotImplementedError


class DeltaNet(DeltaRule):
    family = deltanet.FAMILY

    def heads(self, m: Any) -> int:
        return int(m.num_heads)

    def activated(self, m: Any) -> tuple[bool, bool, bool]:
        silu = m.qk_activation == "silu"
        return silu, silu, True

    def normalized(self, m: Any, x: Tensor) -> Tensor:
        x = x.float()
        if m.qk_activation == "relu":
            x = x.relu()
        elif m.qk_activation == "elu":
            x = F.elu(x) + 1
        return l2norm(x) if m.qk_norm == "l2" else F.normalize(x, p=1, dim=-1, eps=1e-6)

    def beta(self, m: Any, x: Tensor) -> Tensor:
        if m.use_beta:
            return super().beta(m, x)
        return torch.full((len(x), m.num_heads), 2.0 if m.allow_neg_eigval else 1.0, device=x.device)

    def log_decay(self, m: Any, x: Tensor) -> Tensor:
        return torch.zeros(len(x), m.num_heads, device=x.device)


class FlaGatedDeltaNet(DeltaRule):
    family = gdn.FAMILY

    def log_decay(self, m: Any, x: Tensor) -> Tensor:
        return -m.A_log.float().exp() * F.softplus(m.a_proj(x).float() + m.dt_bias.float())  # type: ignore[no-any-return]


class FlaKimiDeltaAttention(DeltaRule):
    family = kda.FAMILY

    def log_decay(self, m: Any, x: Tensor) -> Tensor:
        gate = (m.f_proj(x).float() + m.dt_bias.float()).unflatten(-1, (-1, m.head_k_dim))
        rate = m.A_log.float().exp()[:, None]
        if m.lower_bound is None:
            return -rate * F.softplus(gate)  # type: ignore[no-any-return]
        return m.lower_bound * (rate * gate).sigmoid()  # type: ignore[no-any-return]


MIXERS: dict[str, type[DeltaRule]] = {
    "delta_net": DeltaNet,
    "gated_deltanet": FlaGatedDeltaNet,
    "kda": FlaKimiDeltaAttention,
}


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    fla_mixer.swap(model, cache_spec, MIXERS[model.config.model_type])
