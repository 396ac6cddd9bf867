"""What the engine must know of a model: its layers that read other tokens, and how it rotates."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypic_rag.cache import CODECS, Codec, Entry
from hypic_rag.engine.layers import FLOAT32, Layer
from hypic_rag.engine.passes.base import CurrentPass
from hypic_rag.engine.rotary import Rotary


@dataclass
class CacheSpec:
    """The layers that read other tokens, each at its slot, and the model's rotations.

    ``prepare`` of a model's file fills it: every swapped module and every attention module takes a slot.
    """

    layers: list[Layer] = field(default_factory=list)
    rotaries: list[Rotary] = field(default_factory=list)
    current: CurrentPass = field(default_factory=CurrentPass)

    def take(self, layer: Layer) -> int:
        """Add a layer and return its slot."""
        self.layers.append(layer)
        return len(self.layers) - 1

    def rotary(self, rotary: Rotary) -> Rotary:
        """Return the same rotation with its place among the model's; equal settings are one."""
        for known in self.rotaries:
            if known.settings == rotary.settings:
                return known
        object.__setattr__(rotary, "index", len(self.rotaries))
        self.rotaries.append(rotary)
        return rotary

    def rotation(self, module: Any, config: Any, kind: str = "") -> Rotary | None:
        """Return the rotation of a Hugging Face rotary module, where the config has one a layer type that of
        ``kind``; None without a module."""
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
        """Return whether keys are rotated by other frequencies where there are so many tokens."""
        return self.switch_at is not None and n_tokens > self.switch_at

    def entry_bytes(self, n_tokens: int, element_size: int, codec: Codec = CODECS["none"]) -> int:
        """Count the bytes of the tensors of a cached interior, as a codec stores them if no head's T is dead."""
        total = 0
        for layer in self.layers:
            for name, shape in layer.shapes(n_tokens).items():
                total += codec.nbytes(name, shape, 4 if name in FLOAT32 else element_size)
        return total

    def misfit(self, entry: Entry) -> str | None:
        """Say in what an entry is not of this model's shapes; None where it is."""
        if len(entry.layers) != len(self.layers):
            return f"the entry has {len(entry.layers)} layers, the model {len(self.layers)}"
        for i, (sizes, layer) in enumerate(zip(self.layers, entry.layers, strict=True)):
            wanted = sizes.shapes(entry.n_tokens - entry.seam_tokens)
            found = {name: tuple(tensor.shape) for name, tensor in layer.tensors.items()}
            if layer.family != sizes.name or found != wanted:
                return f"layer {i} is {layer.family} {found}, the model's is {sizes.name} {wanted}"
        return None
