"""Rotary positions: what a model file declares, and turning queries to a cached segment's place."""

import json
from dataclasses import dataclass

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
        """From a Hugging Face rotary module and the config's rope parameters.

        kind: where the module has a rotation a layer type, the buffers' prefix ("sliding_attention", say).
        """
        inv_freq = module.get_buffer(f"{kind}_inv_freq" if kind else "inv_freq").detach().cpu().double()
        changes = parameters.get("rope_type") in ("dynamic", "longrope")
        switch = getattr(module, "original_max_seq_len", None) if changes else None
        settings = json.dumps([parameters, first, interleaved], sort_keys=True, default=str)
        return cls(inv_freq, settings, first, interleaved, switch)

    def turns(self, offsets: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (n, dims) float32, of the turn by ``-offset``; computed in float64, rounded once.

        The sines of each pair's first dim are negated: they multiply the second dim, and the reverse.
        """
        angles = -torch.tensor(offsets, dtype=torch.float64)[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.interleaved:
            both = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return both[0].float().to(device), both[1].float().to(device)

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
