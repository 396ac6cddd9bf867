"""What the engine must know of a model: the family and state sizes of each layer, and its rotation."""

from dataclasses import dataclass

from hypic_rag.cache import Entry
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
        return 4 * self.n_heads * self.k_dim * (self.k_dim + self.v_dim) + element_size * self.channels * (
            self.kernel - 1
        )

    def shapes(self, n_tokens: int) -> dict[str, tuple[int, ...]]:
        """Of a cached interior's tensors."""
        T, S = (self.n_heads, self.k_dim, self.k_dim), (self.n_heads, self.k_dim, self.v_dim)
        return {"T": T, "S": S, "tail": (self.kernel - 1, self.channels)}


@dataclass(frozen=True)
class AttentionLayer:
    """A full-attention layer's sizes: keys and values (n_heads, n_tokens, head_dim) each."""

    n_heads: int
    head_dim: int
    family: str = "attention"

    def entry_bytes(self, n_tokens: int, element_size: int) -> int:
        return 2 * element_size * self.n_heads * self.head_dim * n_tokens

    def shapes(self, n_tokens: int) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("K", "V"), (self.n_heads, n_tokens, self.head_dim))


@dataclass(frozen=True)
class Layout:
    """All layers in order, and the rotation of the attention layers."""

    layers: tuple[LinearLayer | AttentionLayer, ...]
    rotary: Rotary

    def misfit(self, entry: Entry) -> str | None:
        """In what an entry is not of this model's shapes, or None."""
        if len(entry.layers) != len(self.layers):
            return f"the entry has {len(entry.layers)} layers, the model {len(self.layers)}"
        for i, (sizes, layer) in enumerate(zip(self.layers, entry.layers, strict=True)):
            wanted = sizes.shapes(entry.n_tokens - entry.seam_tokens)
            found = {name: tuple(tensor.shape) for name, tensor in layer.tensors.items()}
            if layer.family != sizes.family or found != wanted:
                return f"layer {i} is {layer.family} {found}, the model's is {sizes.family} {wanted}"
        return None
