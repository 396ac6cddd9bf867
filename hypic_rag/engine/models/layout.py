"""What the engine must know of a model: the family and state sizes of each layer, and its rotation."""

from dataclasses import dataclass

from hypic_rag.engine.rotary import Rotary


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer's sizes: state (n_heads, k_dim, v_dim) float32, convolution over ``channels``, ``kernel`` wide."""

    family: str
    n_heads: int
    k_dim: int
    v_dim: int
    channels: int
    kernel: int

    def entry_bytes(self, n_tokens: int, element_size: int) -> int:
        """Bytes of a cached interior: T, S and the convolution tail; the length does not matter."""
        return 4 * self.n_heads * self.k_dim * (self.k_dim + self.v_dim) + element_size * self.channels * (self.kernel - 1)


@dataclass(frozen=True)
class AttentionLayer:
    """A full-attention layer's sizes: keys and values (n_heads, n_tokens, head_dim) each."""

    n_heads: int
    head_dim: int
    family: str = "attention"

    def entry_bytes(self, n_tokens: int, element_size: int) -> int:
        return 2 * element_size * self.n_heads * self.head_dim * n_tokens


@dataclass(frozen=True)
class Layout:
    """All layers in order, and the rotation of the attention layers."""

    layers: tuple[LinearLayer | AttentionLayer, ...]
    rotary: Rotary
