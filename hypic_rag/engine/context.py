"""What travels through the Hugging Face forward: the pass's plan and its sequences, or where to put entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from hypic_rag.engine.plan import Plan
from hypic_rag.engine.recurrence import Compose
from hypic_rag.engine.state import SequenceState


@dataclass(frozen=True)
class Assembly:
    """A pass over active rows. Layers read and advance ``sequences``, which the plan's numbers refer to.

    ``turns[s]``: cos and sin (n_interiors, dims) that turn queries to each interior of sequence s.
    """

    plan: Plan
    sequences: tuple[SequenceState, ...]
    compose: tuple[Compose, ...]
    turns: tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Isolation:
    """A packed prefill of segments, each from a zero state at positions 0, 1, ...

    ``seams[s]``: rows of segment s left out of what is kept. ``kept[layer][s]``: the interior's tensors.
    """

    plan: Plan
    seams: tuple[int, ...]
    kept: dict[int, list[Mapping[str, Tensor]]] = field(default_factory=dict)


Context = Assembly | Isolation
