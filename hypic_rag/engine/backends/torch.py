"""Sequences in plain torch: on a CPU, and for models that the kernels do not know."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from torch import Tensor

from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest, StartedSequence, laid_out
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.prefill import PrefillPasses
from hypic_rag.engine.segment_manager import Fetched, SegmentManager
from hypic_rag.engine.session_cache import SessionCache, merge_live
from hypic_rag.engine.state import TorchSequence
from hypic_rag.prompt import Ids, Part

Shape = tuple[SegmentManager, int, Ids]
"""What shapes the entries of a prompt: where they are found, the seam, the isolation prefix."""


class TorchBackend:
    is_whole = True
    pool = None  # entries stay in the tiers of the cache

    def __init__(self, model: Any, cache_spec: CacheSpec, conversations: SessionCache[TorchSequence]):
        self.model, self.cache_spec, self.conversations = model, cache_spec, conversations
        self.prefill_passes = PrefillPasses.in_torch(model.device)

    def start(self, requests: Sequence[SequenceRequest]) -> list[StartedSequence[TorchSequence] | None]:
        resumed = [self._resume(request) for request in requests]
        fetched = self._fetch([(left, request) for (_, left), request in zip(resumed, requests, strict=True)])
        seconds = sum(found.seconds for found in fetched.values())
        started: list[StartedSequence[TorchSequence] | None] = []
        for (state, left), request in zip(resumed, requests, strict=True):
            found = fetched[_shape(request)]
            cached = [part for part in left if assemble.cached_seam(part, request.policy) is not None]
            if not all(part in found.entries for part in cached):
                started.append(None)
                continue
            one = laid_out(state, left, replace(found, seconds=seconds), request)
            state.capacity = max(state.capacity, len(state.row_positions) + len(one.scheduled.ids) + request.limit)
            started.append(one)
        return started

    def run(self, batch: Sequence[assemble.Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
        return assemble.run(self.model, self.cache_spec, batch, keep)

    def branch(self, state: TorchSequence, n_tokens: int) -> TorchSequence:
        return state.clone()

    def reset(self) -> bool:
        return False  # each sequence has its own tensors

    def too_large(self, n_tokens: int) -> str:
        raise AssertionError("sequences in torch take what memory there is")

    def _resume(self, request: SequenceRequest) -> tuple[TorchSequence, list[Part]]:
        """Return a state to go on from, its own to change, and what is left to run."""
        parts = merge_live(request.prompt.parts, request.policy.mode)
        found = None
        if request.resumes and not self.cache_spec.switches(request.prompt.n_tokens):
            found = self.conversations.find(request.segments.namespace, request.policy, parts)
        return (found[0].clone(), found[1]) if found else (TorchSequence(self.model.device), parts)

    def _fetch(self, wanted: Sequence[tuple[Sequence[Part], SequenceRequest]]) -> dict[Shape, Fetched]:
        """Fetch the cached parts of several prompts, by what shapes their entries."""
        groups: dict[Shape, list[tuple[Part, int]]] = {}
        stops: dict[Part, list[Event]] = {}
        for parts, request in wanted:
            seams = [(part, assemble.cached_seam(part, request.policy)) for part in parts]
            groups.setdefault(_shape(request), []).extend((part, seam) for part, seam in seams if seam is not None)
            for part in parts:
                stops.setdefault(part, []).append(request.stop)

        def is_wanted(part: Part) -> bool:
            return not all(stop.is_set() for stop in stops[part])

        return {
            shape: segments.fetch(group, prefix, is_wanted)
            for shape, group in groups.items()
            for segments, _, prefix in [shape]
        }


def _shape(request: SequenceRequest) -> Shape:
    return request.segments, request.policy.seam_tokens, request.policy.isolation_prefix
