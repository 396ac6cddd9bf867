"""Sequences whose states, keys and cached segments stand in a device's pools, run by kernels."""

from collections.abc import Sequence

from torch import Tensor

from hypic_rag.cache.tiers.device import DeviceEntry
from hypic_rag.config import format_bytes
from hypic_rag.engine.assemble import ScheduledSequence, cached_seam
from hypic_rag.engine.backends.base import SequenceRequest, StartedSequence, laid_out
from hypic_rag.engine.device.model_runner import ModelRunner
from hypic_rag.engine.segment_manager import GivenUp
from hypic_rag.engine.sequence_slots import SequenceSlots
from hypic_rag.engine.session_cache import SessionCache, merge_live
from hypic_rag.engine.state import DeviceSequence
from hypic_rag.prompt import Part


class DeviceBackend:
    def __init__(self, runner: ModelRunner, conversations: SessionCache[DeviceSequence]):
        self.runner, self.pool, self.conversations = runner, runner.pool, conversations
        self.prefill_passes = runner.prefill_passes

    @property
    def is_whole(self) -> bool:
        return self.pool.is_whole

    def start(self, requests: Sequence[SequenceRequest]) -> list[StartedSequence[DeviceSequence] | None]:
        started: list[StartedSequence[DeviceSequence] | None] = []
        for request in requests:
            try:
                one = self._start(request)
            except GivenUp:
                started.append(None)
                continue
            if one is None:
                break
            started.append(one)
        return started

    def run(self, batch: Sequence[ScheduledSequence[DeviceSequence]], keep: Sequence[Sequence[int]]) -> list[Tensor]:
        return self.runner.run(batch, keep)

    def branch(self, state: DeviceSequence, n_tokens: int) -> DeviceSequence | None:
        n_own = len(state.row_positions)
        while (slots := state.slots.copy(n_own, n_own + n_tokens)) is None:
            if not self.conversations.drop():
                return None
        return state.branch(slots)

    def reset(self) -> bool:
        """Drop all that the pools hold: what the interrupt cut off would leak otherwise."""
        self.conversations.clear()
        self.runner.reset()
        return True

    def too_large(self, n_tokens: int) -> str:
        return (
            f"a prompt of {n_tokens} tokens does not fit in the {format_bytes(self.pool.budget)} of the device's "
            "pools. Give them more with --device-memory, or use fewer or shorter documents"
        )

    def _start(self, request: SequenceRequest) -> StartedSequence[DeviceSequence] | None:
        """Start a sequence, for which held conversations give way; None where it still does not fit. Raises GivenUp."""
        while True:
            parts = merge_live(request.prompt.parts, request.policy.mode)
            found = None
            if request.resumes:
                found = self.conversations.find(request.segments.namespace, request.policy, parts)
            held, left = found or (None, parts)
            placed = self._place(held, left, request)
            if placed is not None:
                return placed
            if not self.conversations.drop():
                return None

    def _place(
        self, held: DeviceSequence | None, left: Sequence[Part], request: SequenceRequest
    ) -> StartedSequence[DeviceSequence] | None:
        """Place the cached parts and start on a copy of ``held``, with room for the rows of
        ``left`` and those that may follow."""
        seams = [(part, cached_seam(part, request.policy)) for part in left]
        n_own = 0 if held is None else len(held.row_positions)
        n_tokens = n_own + request.limit + sum(len(part.ids) if seam is None else seam for part, seam in seams)
        slots = SequenceSlots.take(self.pool, n_tokens) if held is None else held.slots.copy(n_own, n_tokens)
        if slots is None:
            return None
        cached = [(part, seam) for part, seam in seams if seam is not None]
        prefix, dead_below = request.policy.isolation_prefix, self.runner.dead_below
        try:
            found = request.segments.place(
                cached, prefix, self.pool, dead_below, lambda part: not request.stop.is_set()
            )
        except GivenUp:
            slots.release()
            raise
        if found is None:
            slots.release()
            return None
        slots.pinned += [one.digest for one in found.entries.values() if isinstance(one, DeviceEntry)]
        state = DeviceSequence(slots) if held is None else held.branch(slots)
        return laid_out(state, left, found, request)
