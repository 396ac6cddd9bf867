"""What the engine must know of a model: what each layer that reads other tokens keeps, and how it rotates."""

import json
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hypic_rag.cache import CODECS, Codec, Entry
from hypic_rag.engine.context import Current
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.rotary import Rotary

Shapes = dict[str, tuple[int, ...]]
FLOAT32 = ("S", "T", "log_T", "dt")
"""Kept tensors that are float32 whatever the model computes in; the others are of the model's type."""


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer: state (n_heads, k_dim, v_dim) float32, and the last ``kernel - 1`` rows of ``channels``.

    family: None where there is no state: a short convolution, or a token shift.
    rates: see ``families.transition``. rotary: where the layer's queries and keys are rotated. in_chunks: whether its
    mixer can run by ``device.chunked``.
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
        """Of a cached interior's tensors; the length does not matter."""
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


@dataclass
class Layout:
    """The layers that read other tokens, each at its slot, and the model's rotations.

    ``prepare`` of a model's file fills it: every swapped module and every attention module takes a slot.
    """

    layers: list[Layer] = field(default_factory=list)
    rotaries: list[Rotary] = field(default_factory=list)
    current: Current = field(default_factory=Current)

    def take(self, layer: Layer) -> int:
        """The next slot."""
        self.layers.append(layer)
        return len(self.layers) - 1

    def rotary(self, rotary: Rotary) -> Rotary:
        """The same rotation with its place among the model's; equal settings are one."""
        for known in self.rotaries:
            if known.settings == rotary.settings:
                return known
        object.__setattr__(rotary, "index", len(self.rotaries))
        self.rotaries.append(rotary)
        return rotary

    def rotation(self, module: Any, config: Any, kind: str = "") -> Rotary | None:
        """Of a Hugging Face rotary module, where the config has one a layer type that of ``kind``; None without one."""
        if module is None:
            return None
        parameters = config.rope_parameters
        if kind in parameters:
            return self.rotary(Rotary.from_module(module, parameters[kind], kind=kind))
        return self.rotary(Rotary.from_module(module, parameters))

    @property
    def rope_settings(self) -> str:
        """Stands for all rotations in cache keys."""
        return json.dumps([rotary.settings for rotary in self.rotaries])

    @property
    def switch_at(self) -> int | None:
        """The prompt length beyond which some rotation changes."""
        return min((r.switch_at for r in self.rotaries if r.switch_at is not None), default=None)

    def switches(self, n_tokens: int) -> bool:
        """Whether keys are rotated by other frequencies where there are so many tokens."""
        return self.switch_at is not None and n_tokens > self.switch_at

    def entry_bytes(self, n_tokens: int, element_size: int, codec: Codec = CODECS["none"]) -> int:
        """Bytes of the tensors of a cached interior, as a codec stores them if no head's T is dead."""
        total = 0
        for layer in self.layers:
            for name, shape in layer.shapes(n_tokens).items():
                total += codec.nbytes(name, shape, 4 if name in FLOAT32 else element_size)
        return total

    def misfit(self, entry: Entry) -> str | None:
        """In what an entry is not of this model's shapes, or None."""
        if len(entry.layers) != len(self.layers):
            return f"the entry has {len(entry.layers)} layers, the model {len(self.layers)}"
        for i, (sizes, layer) in enumerate(zip(self.layers, entry.layers, strict=True)):
            wanted = sizes.shapes(entry.n_tokens - entry.seam_tokens)
            found = {name: tuple(tensor.shape) for name, tensor in layer.tensors.items()}
            if layer.family != sizes.name or found != wanted:
                return f"layer {i} is {layer.family} {found}, the model's is {sizes.name} {wanted}"
        return None
