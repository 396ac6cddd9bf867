"""What a layer that reads other tokens asks of the pass that runs: five verbs, whoever carries them out.

``TorchAssembly`` and ``TorchIsolation`` do so in plain torch, ``DeviceAssembly``, ``DeviceIsolation`` and
``DeviceLongPrompt`` with kernels, over states and keys that stand in a GPU's pools. A layer calls the pass and never
asks which it is. ``slot``: the layer's number in the model's ``CacheSpec``; ``layer``: what stands there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import AttentionLayer, LinearLayer


@dataclass(frozen=True)
class AttentionParams:
    """How products of queries and keys become weights.

    softcap: of the scores (Gemma 2). sinks: (Hq,), a logit a head that takes weight and gives nothing (gpt-oss).
    """

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether torch's own attention does it."""
        return self.softcap is None and self.sinks is None

    def weights(self, scores: Tensor) -> Tensor:
        """Turn scores to weights. scores: (..., Hq, N, L) float32, scaled, -inf where unseen; changed. The
        last axis sums to one or less."""
        if self.softcap is not None:
            scores = torch.where(scores.isinf(), scores, self.softcap * torch.tanh(scores / self.softcap))
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.float().view(*scores.shape[:-2], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]


class Pass(Protocol):
    """One forward of the model over N rows of several sequences."""

    @property
    def positions(self) -> Tensor:
        """(N,) int64: global, or local to each segment in an isolated prefill."""
        ...

    def causal_conv1d(
        self, slot: int, layer: LinearLayer, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
    ) -> Tensor:
        """Convolve each channel causally. x: (N, C); weight: (C, k). Return (N, C) in x's dtype."""
        ...

    def token_shift(self, slot: int, layer: LinearLayer, x: Tensor) -> Tensor:
        """Return the row before each row, zero before the first. x: (N, C)."""
        ...

    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor:
        """Advance the layer's states by the rows. Return what these read, (N, H, V) float32."""
        ...

    def gated_delta_rule(
        self, slot: int, layer: LinearLayer, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        """Run Gated DeltaNet from its projections to what the rows read, (N, H, V) in qkv's dtype.

        m: Hugging Face's module, whose convolution and decays are read. qkv: (N, C); a, b: (N, H), of decay and write
        strength. beta_scale: the greatest write strength.
        """
        ...

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        """Attend causally to all that stands before. q: (Hq, N, D), k: (H, N, D), v: (H, N, Dv), rotated at
        ``positions``. Return (Hq, N, Dv)."""
        ...


class CurrentPass:
    """The pass that runs; one a model, held by every module that reads other tokens.

    Not a keyword argument of the forward: several models do not hand those on to their mixers.
    """

    def __init__(self) -> None:
        self._running: Pass | None = None

    @property
    def running(self) -> Pass:
        if self._running is None:
            raise RuntimeError("this model was prepared for SegmentEngine: call the engine, or load the model again")
        return self._running

    @contextmanager
    def during(self, running: Pass) -> Iterator[None]:
        """Make a pass the current one: ``with current.during(a_pass): model(...)``. Passes take
        turns: the engine's lock sees to it."""
        self._running = running
        try:
            yield
        finally:
            self._running = None
