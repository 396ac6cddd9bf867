"""What a cache of keys and values alone can do, as CacheBlend (arXiv 2405.16444) does before it recomputes anything.

The entries are those of seam 0. Full-attention layers read the documents' keys, turned to their places in the prompt,
and values. Every other kept tensor is zero, and composed by addition: a recurrent layer's state passes a document as it
came, and its convolution begins anew behind one. So recurrent layers see the system text, the question and the answer,
and no document. In a model of full attention alone nothing is zeroed, and this is ``hypic:w=0``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hypic_eval.modes import Mode

if TYPE_CHECKING:
    from hypic_rag.cache import Entry, SegmentKey
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.prompt import Ids

NAMESPACE = "evaluation of keys and values alone"
WHOLE = Mode("hypic", 0)


def view(engine: "SegmentEngine", documents: Sequence["Ids"]) -> "SegmentEngine":
    """Make the documents' entries without their recurrent part, and the engine that finds them."""
    from hypic_rag.cache import Hit

    reading = engine.within(NAMESPACE)
    engine.prefill(documents, policy=WHOLE.policy)
    for ids in documents:
        found = engine.cache.lookup(engine.segment_key(ids, policy=WHOLE.policy))
        assert isinstance(found, Hit), "it was made just now, and nothing else runs"
        reading.cache.put(reading.segment_key(ids, policy=WHOLE.policy), without_states(found.entry))
    return reading


def without_states(entry: "Entry") -> "Entry":
    """Zero all that is not kept token by token."""
    import torch

    from hypic_rag.cache.entry import PER_TOKEN

    layers = (
        replace(
            layer, tensors={name: t if name in PER_TOKEN else torch.zeros_like(t) for name, t in layer.tensors.items()}
        )
        for layer in entry.layers
    )
    return replace(entry, layers=tuple(layers))


def keys(engine: "SegmentEngine", documents: Sequence["Ids"]) -> list["SegmentKey"]:
    """Name the entries that ``view`` makes."""
    reading = engine.within(NAMESPACE)
    return [one.segment_key(ids, policy=WHOLE.policy) for one in (engine, reading) for ids in documents]
