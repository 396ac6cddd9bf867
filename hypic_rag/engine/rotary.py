"""Rotary positions: what a model file declares, and turning queries to a cached segment's place."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """How a model rotates queries and keys.

    inv_freq: (dims / 2,) float64, the pure frequencies (no YaRN scaling of the amplitude).
    dims: leading dims of a head that are rotated; the rest pass. Halves are paired (Llama's layout).
    switch_at: prompt length beyond which the frequencies change with the length (dynamic NTK, LongRoPE), or None.
    settings: stands for all this in cache keys.
    """

    inv_freq: Tensor
    dims: int
    switch_at: int | None
    settings: str

    @classmethod
    def from_module(cls, module: torch.nn.Module, parameters: dict[str, object]) -> "Rotary":
        """From a Hugging Face rotary module (its ``inv_freq`` buffer) and the config's rope parameters."""
        inv_freq = module.get_buffer("inv_freq").detach().cpu().double()
        changes = parameters.get("rope_type") in ("dynamic", "longrope")
        switch = getattr(module, "original_max_seq_len", None) if changes else None
        return cls(inv_freq, 2 * inv_freq.numel(), switch, json.dumps(parameters, sort_keys=True, default=str))

    def turns(self, offsets: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (n, dims) float32, of the turn by ``-offset``; computed in float64, rounded once.

        The first half of the sines is negated: it multiplies the second half of a head, and the reverse.
        """
        angles = -torch.tensor(offsets, dtype=torch.float64)[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1).float().to(device), torch.cat((-sin, sin), dim=-1).float().to(device)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (..., D) further by the angles of cos and sin (dims,), as ``turns`` gives them. Returns float32."""
    x, dims = x.float(), cos.shape[-1]
    rotated = x[..., :dims]
    rotated = torch.addcmul(rotated * cos, rotated.roll(dims // 2, dims=-1), sin)
    return rotated if dims == x.shape[-1] else torch.cat((rotated, x[..., dims:]), dim=-1)
