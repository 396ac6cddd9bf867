"""PrefillSegments: a step of a LlamaIndex IngestionPipeline that fills the segment cache."""

from collections.abc import Sequence
from threading import Event
from typing import Any, NoReturn

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, TransformComponent

from hypic_rag.engine import PrefillReport, SegmentEngine
from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.background import result_of
from hypic_rag.integrations.llama_index.node_text import title_and_text
from hypic_rag.packs import packs
from hypic_rag.retrieval.segments import PASSES, cold_segments


class PrefillSegments(TransformComponent):
    """Prefills every node that passes, and passes it on unchanged; put it last, after the splitter.

    Nodes are read as HypicSynthesizer will read them (``title_and_text``), so what this stores is found at
    the question. Running it again over the same nodes computes nothing.

    An IngestionPipeline remembers transformations: nodes that it has seen before do not come here, whether
    or not their segments are still in the cache. The model and the policy are part of what it remembers;
    after emptying the segment cache, run the pipeline with ``disable_cache=True``. Workers (``num_workers``
    above 1) would each need a model of their own, so the pipeline must run without them. ``report`` tells
    of the last call.
    """

    model: str
    fingerprint: str
    policy: str
    _engine: SegmentEngine = PrivateAttr()
    _report: PrefillReport | None = PrivateAttr(default=None)

    def __init__(self, engine: SegmentEngine):
        fields = {"model": engine.model_name, "fingerprint": engine.fingerprint, "policy": str(engine.policy)}
        super().__init__(**fields)
        self._engine = engine

    @classmethod
    def class_name(cls) -> str:
        return "PrefillSegments"

    @property
    def report(self) -> PrefillReport | None:
        return self._report

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        self._prefill(nodes, Event())
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Prefill the nodes. What was prefilled when this is cancelled stays."""
        await result_of(lambda stop: self._prefill(nodes, stop))
        return nodes

    def _prefill(self, nodes: Sequence[BaseNode], stop: Event) -> None:
        seen: set[str] = set()
        cold = cold_segments(self._engine, [title_and_text(node) for node in nodes], seen)
        reports = list[PrefillReport]()
        most = PASSES * self._engine.pass_tokens
        for pack in packs(cold, (lambda segment: segment.key.n_tokens, lambda: most)):
            if not stop.is_set():
                reports.append(self._engine.make(pack, stop=stop))
        total = {
            name: sum(getattr(report, name) for report in reports)
            for name in ("n_hits", "n_prefilled", "n_tokens", "nbytes", "seconds")
        }
        total["n_hits"] += len(seen) - len(cold)
        self._report = PrefillReport(n_segments=len(seen), **total)

    def __getstate__(self) -> NoReturn:
        raise BadInput(
            "PrefillSegments holds a model and cannot be sent to another process: run the pipeline without "
            "num_workers (the model uses all cores as it is)"
        )
