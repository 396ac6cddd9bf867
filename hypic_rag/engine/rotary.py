"""Rotary positions: what a model file declares, and turning queries to a cached segment's place."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Rotary:
    """One of a model's rotations of queries and keys.

    inv_freq: (dims / 2,) float64, the pure frequencies (no YaRN scaling of the amplitude).
    first: where in a head the rotated dims begin; the others pass.
    interleaved: pairs are neighbours (GPT-J's layout), else halves (Llama's).
    switch_at: prompt length beyond which the frequencies change with the length (dynamic NTK, LongRoPE), or None.
    settings: stands for all this in cache keys. index: its place among the model's rotations.
    """

    inv_freq: Tensor
    settings: str
    first: int = 0
    interleaved: bool = False
    switch_at: int | None = None
    index: int = 0

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        parameters: dict[str, object],
        *,
        kind: str = "",
        first: int = 0,
        interleaved: bool = False,
    ) -> "Rotary":
        """Make one from a Hugging Face rotary module and the config's rope parameters.

        kind: where the module has a rotation a layer type, the buffers' prefix ("sliding_attention", say).
        A dynamic one, whose frequencies depend on the longest pass so far, is made to begin every pass afresh.
        """
        prefix = f"{kind}_" if kind else ""
        inv_freq = module.get_buffer(f"{prefix}inv_freq").detach().cpu().double()
        switch: Any = None
        if parameters.get("rope_type") == "longrope":
            switch = parameters["original_max_position_embeddings"]
        elif parameters.get("rope_type") == "dynamic":
            switch = module.original_max_seq_len
            module.register_forward_pre_hook(lambda module, *_: _begin_afresh(module, prefix))
        settings = json.dumps([parameters, first, interleaved], sort_keys=True, default=str)
        return cls(inv_freq, settings, first, interleaved, switch)

    def turns(self, offsets: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (n, dims) float32, of the turn by ``-offset``; computed in float64, rounded once.

        The sines of each pair's first dim are negated: they multiply the second dim, and the reverse.
        """
        cos, sin = self.at(-torch.tensor(offsets))
        return cos.to(device), sin.to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, as ``turns`` does, of the rotation itself at positions (n,), on their device."""
        angles = positions.double()[:, None] * _on(positions.device, self)
        cos, sin = angles.cos(), angles.sin()
        if self.interleaved:
            both = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return both[0].float(), both[1].float()

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x (..., D) further by angles of ``turns``, cos and sin (dims,) or (..., dims). Returns float32."""
        x, dims = x.float(), cos.shape[-1]
        rotated = x[..., self.first : self.first + dims]
        if self.interleaved:
            swapped = rotated.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = rotated.roll(dims // 2, dims=-1)
        rotated = torch.addcmul(rotated * cos, swapped, sin)
        if dims == x.shape[-1]:
            return rotated
        return torch.cat((x[..., : self.first], rotated, x[..., self.first + dims :]), dim=-1)


@lru_cache(maxsize=256)
def _on(device: torch.device, rotary: Rotary) -> Tensor:
    """Bring the frequencies to a device, once, since a pass that is captured as a graph can bring nothing."""
    return rotary.inv_freq.to(device)


def context_length(config: Any) -> int:
    """Return how many tokens a model takes: with dynamic NTK, ``factor`` times as many as it was trained on."""
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = [rope, *(of_kind for of_kind in rope.values() if isinstance(of_kind, dict))]
    stretch = max((one["factor"] for one in ropes if one.get("rope_type") == "dynamic"), default=1.0)
    return int(config.max_position_embeddings * stretch)


def _begin_afresh(module: Any, prefix: str) -> None:
    setattr(module, f"{prefix}inv_freq", module.get_buffer(f"{prefix}original_inv_freq"))
    setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
