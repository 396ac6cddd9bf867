"""What the layers of a model read during a pass: the pass's plan and its sequences, or where to put entries."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from hypic_rag.engine.plan import Plan
from hypic_rag.engine.policy import Compose
from hypic_rag.engine.state import SequenceState

if TYPE_CHECKING:
    from hypic_rag.engine.device.chunked import DeviceIsolation, LongPass
    from hypic_rag.engine.device.context import DevicePass

    OnDevice: TypeAlias = DevicePass | DeviceIsolation | LongPass

Turns = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Assembly:
    """A pass over active rows. Layers read and advance ``sequences``, which the plan's numbers refer to.

    positions: (N,) int64, global. ``turns[s][r]``: cos and sin (n_interiors, dims) that turn queries, by the
    model's rotation r, to each interior of sequence s.
    """

    plan: Plan
    positions: Tensor
    sequences: tuple[SequenceState, ...]
    compose: tuple[Compose, ...]
    turns: tuple[tuple[Turns, ...], ...]


@dataclass(frozen=True)
class Isolation:
    """A packed prefill of segments, each from a zero state at positions 0, 1, ... (an isolation prefix before 0).

    ``dropped[s]``: first rows of segment s left out of what is kept. ``kept[slot][s]``: the interior's tensors.
    """

    plan: Plan
    positions: Tensor
    dropped: tuple[int, ...]
    kept: defaultdict[int, defaultdict[int, dict[str, Tensor]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )


Context = Assembly | Isolation


class Current:
    """The context of the pass that runs; one a model, held by every module that reads other tokens.

    Not a keyword argument of the forward: several models do not hand those on to their mixers.
    """

    def __init__(self) -> None:
        self._context: Context | OnDevice | None = None

    @property
    def context(self) -> "Context | OnDevice":
        if self._context is None:
            raise RuntimeError("this model was prepared for SegmentEngine: call the engine, or load the model again")
        return self._context

    @contextmanager
    def during(self, context: "Context | OnDevice") -> Iterator[None]:
        """``with current.during(context): model(...)``. Passes take turns: the engine's lock sees to it."""
        self._context = context
        try:
            yield
        finally:
            self._context = None
