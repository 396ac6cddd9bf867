"""What stands in for a Hugging Face mixer: the same weights, and our ways of reading other rows."""

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from hypic_rag.engine import linear
from hypic_rag.engine.context import Assembly, Context, Isolation
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import Layout, LinearLayer
from hypic_rag.errors import UnsupportedModel

if TYPE_CHECKING:
    from hypic_rag.engine.context import OnDevice
    from hypic_rag.engine.device.context import DevicePass


class Mixer(nn.Module):
    """Takes the place of ``original``, whose weights it reads; a model's file says ``sizes`` and ``mix``.

    ``mix`` reads like the original's forward, over rows (N, hidden) without padding, with ``convolved``, ``shifted``
    and ``recurred`` where the original reads other tokens. ``returns``: how many values the original returns, the
    output first.
    """

    returns = 1

    def __init__(self, original: Any, layout: Layout):
        super().__init__()
        activation = getattr(original, "activation", None)
        if isinstance(activation, str) and activation not in ("silu", "swish"):
            raise UnsupportedModel(
                f"{type(original).__name__} has the activation {activation!r} behind its convolution, and only SiLU is "
                "known here. Choose another model, or add its mixer: docs/adding-a-model.md"
            )
        self.original = original
        self.layer = self.sizes(original, layout)
        self.slot = layout.take(self.layer)
        self.current = layout.current

    def sizes(self, m: Any, layout: Layout) -> LinearLayer:
        """What the layer keeps. m: the original."""
        raise NotImplementedError

    def mix(self, m: Any, x: Tensor) -> Tensor:
        """x: (N, hidden), the rows of the pass. Returns (N, hidden)."""
        raise NotImplementedError

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """hidden_states: (1, N, hidden)."""
        out = self.mix(self.original, hidden_states[0])[None]
        return out if self.returns == 1 else (out, *[None] * (self.returns - 1))

    @property
    def positions(self) -> Tensor:
        """(N,) int64, of the rows: global, or local in an isolated prefill."""
        return self.current.context.positions

    @property
    def on_device(self) -> "OnDevice | None":
        """The pass, where it runs on a device's kernels and pools."""
        context = self.current.context
        return None if isinstance(context, Assembly | Isolation) else context

    @property
    def _context(self) -> "Context | DevicePass":
        """Passes on a device of other kinds run mixers that do not ask (``LinearLayer.in_chunks``)."""
        return cast("Context | DevicePass", self.current.context)

    def convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, silu: bool = True) -> Tensor:
        """The causal convolution, SiLU of it unless told. x: (N, C); weight: (C, k) or (C, 1, k)."""
        taps = weight.squeeze(1) if weight.dim() == 3 else weight
        context = self._context
        if not isinstance(context, Assembly | Isolation):
            return context.convolved(self.slot, x, taps, bias, silu)
        return linear.convolved(context, self.slot, self.layer, x, taps, bias, silu)

    def shifted(self, x: Tensor) -> Tensor:
        """The row before each row. x: (N, C)."""
        context = self._context
        assert isinstance(context, Assembly | Isolation)  # no kernel does it
        return linear.shifted(context, self.slot, self.layer, x)

    def recurred(self, rows: Rows) -> Tensor:
        """What the rows read of the state: (N, H, V) float32. Heads of q and k may serve several of v."""
        context = self._context
        if not isinstance(context, Assembly | Isolation):
            return context.recurred(self.slot, self.layer, rows)
        return linear.recurred(context, self.slot, self.layer, rows.widened())


def unit_length(x: Tensor, eps: float = 1e-6) -> Tensor:
    """The last axis at length one, in float32, as the delta rules want keys."""
    x = x.float()
    return x * (x * x).sum(-1, keepdim=True).add(eps).rsqrt()
