"""What the scheduler asks of a backend: start sequences, run a pass over them, begin anew after an interrupted one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.engine.assemble import ScheduledSequence, lay_out
from hypic_rag.engine.outputs import Report, SegmentUse
from hypic_rag.engine.policy import Policy
from hypic_rag.engine.prefill import PrefillPasses
from hypic_rag.engine.segment_manager import Fetched, SegmentManager
from hypic_rag.engine.session_cache import merge_live
from hypic_rag.engine.state import SequenceState
from hypic_rag.prompt import Part, Prompt

State = TypeVar("State", bound=SequenceState)


@dataclass(frozen=True)
class SequenceRequest:
    """A prompt to be started. limit: tokens that may follow it. segments: where its entries are found and made.
    stop: set once nobody waits for it. resumes: whether it may go on from a held conversation."""

    prompt: Prompt
    policy: Policy
    limit: int
    segments: SegmentManager
    stop: Event = field(default_factory=Event)
    resumes: bool = True


@dataclass(frozen=True)
class StartedSequence(Generic[State]):
    """A sequence with its cached parts placed and its rows laid out, and what has been done for it so far."""

    scheduled: ScheduledSequence[State]
    report: Report


class Backend(Protocol[State]):
    prefill_passes: PrefillPasses

    @property
    def pool(self) -> DevicePool | None:
        """The pools in which entries and states stand, where they stand in a device's."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut off in the midst of a change to what it holds."""
        ...

    def start(self, requests: Sequence[SequenceRequest]) -> list[StartedSequence[State] | None]:
        """Start the sequences, in order; where there is room for the first ones only, those. None for one that was
        stopped before its parts were made."""
        ...

    def run(self, batch: Sequence[ScheduledSequence[State]], keep: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """Run one pass over the batch, whose states it advances. keep: rows of each sequence whose logits are wanted.
        Return (n_kept, vocabulary) a sequence."""
        ...

    def branch(self, state: State, n_tokens: int) -> State | None:
        """Return a copy of a state that can go its own way, with room for as many tokens; None where there is none."""
        ...

    def reset(self) -> bool:
        """Begin anew after a pass that did not finish. Return whether all started sequences are lost with it."""
        ...

    def too_large(self, n_tokens: int) -> str:
        """Say why a prompt of so many tokens can never be started."""
        ...


def laid_out(state: State, parts: Sequence[Part], found: Fetched, request: SequenceRequest) -> StartedSequence[State]:
    """Lay ``parts``, what is left to run of the request, out on ``state`` (changed), and report what was found."""
    prompt, policy = request.prompt, request.policy
    resumed = state.position
    scheduled = lay_out(state, parts, found.entries, policy)
    state.parts = merge_live(prompt.parts, policy.mode)
    missed = {part for part in parts if part in found.uses and found.uses[part].tier is None}
    leading, uses = _uses(prompt, resumed, found.uses)
    computed = len(scheduled.ids) + sum(len(part.ids) for part in missed)
    ms = 1e3 * found.seconds
    report = Report(policy, prompt.n_tokens, computed, resumed, uses, ms, 0.0, leading=leading)
    return StartedSequence(scheduled, report)


def _uses(
    prompt: Prompt, n_resumed: int, uses: Mapping[Part, SegmentUse]
) -> tuple[SegmentUse | None, tuple[SegmentUse, ...]]:
    """Return the use of the leading segment, where there is one, and of each document of the prompt, in order.

    n_resumed: tokens that an earlier turn had run.
    """
    leading, documents, end = None, [], 0
    for part in prompt.parts:
        end += len(part.ids)
        use = uses.get(part, SegmentUse(len(part.ids), "live"))
        if end <= n_resumed:
            use = SegmentUse(len(part.ids), "conversation")
        if part.kind == "leading":
            leading = use
        elif part.kind == "document":
            documents.append(use)
    return leading, tuple(documents)
