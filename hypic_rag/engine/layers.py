"""What a layer that reads other tokens keeps of a segment."""

from dataclasses import dataclass

from torch import Tensor

from hypic_rag.engine.families.family import Family
from hypic_rag.engine.rotary import Rotary

Shapes = dict[str, tuple[int, ...]]
FLOAT32 = ("S", "T", "log_T", "dt")
"""Kept tensors that are float32 whatever the model computes in; the others are of the model's type."""


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer: state (n_heads, k_dim, v_dim) float32, and the last ``kernel - 1`` rows of ``channels``.

    family: None where there is no state: a short convolution, or a token shift.
    rates: see ``families.transition``. rotary: where the layer's queries and keys are rotated. in_chunks: whether the
    prefill kernels of ``passes.prefill_kernels`` can run its mixer.
    """

    family: Family | None
    n_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    channels: int = 0
    kernel: int = 1
    rates: Tensor | None = None
    rotary: Rotary | None = None
    in_chunks: bool = False

    @property
    def name(self) -> str:
        return "short_convolution" if self.family is None else self.family.name

    @property
    def has_kernels(self) -> bool:
        """Whether kernels do it; none turns a state, which is kept at local positions where keys are rotated."""
        return self.rotary is None and (self.family is None or self.family.has_kernel)

    def shapes(self, n_tokens: int) -> Shapes:
        """Return the shapes of a cached interior's tensors; its length does not matter."""
        shapes: Shapes = {}
        if self.family is not None:
            shapes |= self.family.transition.shapes(self)
            shapes["S"] = (self.n_heads, self.k_dim, self.v_dim)
        if self.kernel > 1:
            shapes["tail"] = (self.kernel - 1, self.channels)
        return shapes


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """A full-attention layer: keys (n_heads, n_tokens, k_dim) and values (n_heads, n_tokens, v_dim).

    window: how many tokens back a query sees, itself included (a sliding window), or None.
    latent: the values are the first v_dim of the keys (MLA's latent), which are kept once.
    """

    n_heads: int
    k_dim: int
    v_dim: int
    rotary: Rotary | None
    window: int | None = None
    latent: bool = False

    @property
    def name(self) -> str:
        return "latent_attention" if self.latent else "attention"

    def shapes(self, n_tokens: int) -> Shapes:
        keys, values = (self.n_heads, n_tokens, self.k_dim), (self.n_heads, n_tokens, self.v_dim)
        return {"latent": keys} if self.latent else {"K": keys, "V": values}


Layer = LinearLayer | AttentionLayer
