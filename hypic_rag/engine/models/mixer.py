"""What stands in for a Hugging Face mixer: the same weights, and our ways of reading other rows."""

from typing import Any

from torch import Tensor, nn

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.errors import UnsupportedModel


class Mixer(nn.Module):
    """Takes the place of ``original``, whose weights it reads; a model's file says ``sizes`` and ``mix``.

    ``mix`` reads like the original's forward, over rows (N, hidden) without padding, with ``causal_conv1d``,
    ``token_shift``, ``recurrent_scan`` or ``gated_delta_rule`` where the original reads other tokens: the verbs of the
    pass that runs (``passes.base``). ``returns``: how many values the original returns, the
    output first.
    """

    returns = 1

    def __init__(self, original: Any, cache_spec: CacheSpec):
        super().__init__()
        activation = getattr(original, "activation", None)
        if isinstance(activation, str) and activation not in ("silu", "swish"):
            raise UnsupportedModel(
                f"{type(original).__name__} has the activation {activation!r} behind its convolution, and only SiLU is "
                "known here. Choose another model, or add its mixer: docs/adding-a-model.md"
            )
        self.original = original
        self.layer = self.sizes(original, cache_spec)
        self.slot = cache_spec.take(self.layer)
        self.current = cache_spec.current

    def sizes(self, m: Any, cache_spec: CacheSpec) -> LinearLayer:
        """Return what the layer keeps. m: the original."""
        raise NotImplementedError

    def mix(self, m: Any, x: Tensor) -> Tensor:
        """Mix the rows. x: (N, hidden), the rows of the pass. Returns (N, hidden)."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """hidden_states: (1, N, hidden)."""
        out = self.mix(self.original, hidden_states[0])[None]
        return out if self.returns == 1 else (out, *[None] * (self.returns - 1))

    @property
    def positions(self) -> Tensor:
        """(N,) int64, of the rows: global, or local in an isolated prefill."""
        return self.current.running.positions

    def causal_conv1d(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = True) -> Tensor:
        """Run the causal convolution, and SiLU behind it unless told. x: (N, C); weight: (C,
        k) or (C, 1, k). Returns (N, C)."""
        taps = weight.squeeze(1) if weight.dim() == 3 else weight
        return self.current.running.causal_conv1d(self.slot, self.layer, x, taps, bias, silu)

    def token_shift(self, x: Tensor) -> Tensor:
        """Return the row before each row. x: (N, C)."""
        return self.current.running.token_shift(self.slot, self.layer, x)

    def recurrent_scan(self, inputs: RecurrenceInputs) -> Tensor:
        """Run the recurrence; return what the rows read of the state, (N, H, V) float32. Heads of
        q and k may serve several of v."""
        return self.current.running.recurrent_scan(self.slot, self.layer, inputs)

    def gated_delta_rule(self, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float) -> Tensor:
        """Run Gated DeltaNet from its projections to what the rows read; see ``passes.base.Pass``."""
        return self.current.running.gated_delta_rule(self.slot, self.layer, m, qkv, a, b, beta_scale)
