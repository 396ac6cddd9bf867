"""What a segment does to any earlier state, kept as small as its family allows, and composition with it.

``compose`` is ``T R + S`` (HYPIC, arXiv 2607.01299, Eq. 6) for each form of T. ``shapes`` names the tensors that an
entry keeps for T; ``keep`` makes them from the rows of an interior (dense ones are run along with the rows instead).
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs


class LayerSizes(Protocol):
    """What of a layer a transition depends on. ``rates``: (H,) log decays a token, or (H, K) a unit of time."""

    @property
    def n_heads(self) -> int: ...

    @property
    def k_dim(self) -> int: ...

    @property
    def rates(self) -> Tensor | None: ...


Kept = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


class Transition(Protocol):
    """name: in words. form: how ``hypic_kernels.scan`` names it. tensor: what an entry keeps for it, "" for nothing."""

    name: str
    form: str
    tensor: str

    def shapes(self, sizes: LayerSizes) -> Shapes: ...

    def keep(self, rows: RecurrenceInputs) -> Kept: ...

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        """Return the state after a segment whose own is S, from the state R before it. R, S: (H, K, V) float32,
        not modified. Returns a new one."""
        ...


class Dense:
    """T: (H, K, K). It is run along with the rows, as K more value columns that start from the identity."""

    name, form, tensor = "dense", "dense", "T"

    def shapes(self, sizes: LayerSizes) -> Shapes:
        return {"T": (sizes.n_heads, sizes.k_dim, sizes.k_dim)}

    def keep(self, rows: RecurrenceInputs) -> Kept:
        return {}

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        return torch.baddbmm(S, kept["T"], R)


class Diagonal:
    """log_T: (H, K), the sum of the rows' log decays."""

    name, form, tensor = "diagonal", "diagonal", "log_T"

    def shapes(self, sizes: LayerSizes) -> Shapes:
        return {"log_T": (sizes.n_heads, sizes.k_dim)}

    def keep(self, rows: RecurrenceInputs) -> Kept:
        return {"log_T": rows.log_decay.sum(0)}

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        return torch.addcmul(S, kept["log_T"].exp()[..., None], R)


class Scalar:
    """log_T: (H,), the sum of the rows' log decays."""

    name, form, tensor = "scalar", "scalar", "log_T"

    def shapes(self, sizes: LayerSizes) -> Shapes:
        return {"log_T": (sizes.n_heads,)}

    def keep(self, rows: RecurrenceInputs) -> Kept:
        return {"log_T": rows.log_decay.sum(0)}

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        return torch.addcmul(S, kept["log_T"].exp()[:, None, None], R)


class Length:
    """Nothing is kept: every token decays alike, by ``sizes.rates``, and the length is known."""

    name, form, tensor = "scalar, from the length", "length", ""

    def shapes(self, sizes: LayerSizes) -> Shapes:
        return {}

    def keep(self, rows: RecurrenceInputs) -> Kept:
        return {}

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        assert sizes.rates is not None
        T = (n_tokens * sizes.rates.to(R.device)).exp()
        return torch.addcmul(S, T[:, None, None], R)


class TimeSteps:
    """dt: (H,), the sum of the rows' time steps; each state channel decays by its own rate in ``sizes.rates``."""

    name, form, tensor = "diagonal, from the sum of dt", "steps", "dt"

    def shapes(self, sizes: LayerSizes) -> Shapes:
        return {"dt": (sizes.n_heads,)}

    def keep(self, rows: RecurrenceInputs) -> Kept:
        assert rows.dt is not None
        return {"dt": rows.dt.sum(0)}

    def compose(self, R: Tensor, kept: Mapping[str, Tensor], S: Tensor, n_tokens: int, sizes: LayerSizes) -> Tensor:
        assert sizes.rates is not None
        T = (kept["dt"][:, None] * sizes.rates.to(R.device)).exp()
        return torch.addcmul(S, T[..., None], R)
