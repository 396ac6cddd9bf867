"""Full attention of Hugging Face's modules, registered with transformers as ``attn_implementation="hypic"``.

Queries and keys arrive rotated at the positions of the pass, which does the rest (``passes.base.Pass.attend``).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.passes.base import AttentionParams, CurrentPass
from hypic_rag.engine.rotary import Rotary

IMPLEMENTATION = "hypic"


@dataclass(frozen=True)
class AttentionHandle:
    """What an attention module knows of its place."""

    slot: int
    layer: AttentionLayer
    current: CurrentPass

    @classmethod
    def take(cls, layer: AttentionLayer, cache_spec: CacheSpec) -> "AttentionHandle":
        """Take the next slot, for a module that calls ``attend`` itself."""
        return cls(cache_spec.take(layer), layer, cache_spec.current)

    @classmethod
    def give(
        cls, module: Any, config: Any, cache_spec: CacheSpec, rotary: Rotary | None = None, window: int | None = None
    ) -> None:
        """Give the next slot to a module of Hugging Face's, whose attention function finds it as ``module.hypic``.

        window: 0 is none, as some configurations have it.
        """
        dim = module.head_dim
        layer = AttentionLayer(config.num_key_value_heads, dim, dim, rotary, window or None)
        module.hypic = cls.take(layer, cache_spec)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        """Attend by the pass that runs. q: (Hq, N, D); k: (H, N, D); v: (H, N, Dv), rows of
        the pass. Returns (Hq, N, Dv)."""
        return self.current.running.attend(self.slot, self.layer, q, k, v, params)


def hypic_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend by the pass that runs, behind transformers' interface.

    query: (1, Hq, N, D); key, value: (1, H, N, D). Returns (1, N, Hq, D).
    softcap, s_aux (sinks): see ``AttentionParams``.
    """
    handle = getattr(module, "hypic", None)
    if handle is None:
        raise RuntimeError(
            "this model was loaded for SegmentEngine: call the engine, or load it again without "
            f"attn_implementation={IMPLEMENTATION!r}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = handle.attend(query[0], key[0], value[0], AttentionParams(scale, softcap, s_aux))
    return out.transpose(0, 1)[None], None


AttentionInterface.register(IMPLEMENTATION, hypic_attention)
