"""The assembled forward: lay a prompt's parts out as active rows and cached interiors, and run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hypic_rag.cache import Entry
from hypic_rag.cache.tiers.device import DeviceEntry
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.passes.torch_assembly import TorchAssembly
from hypic_rag.engine.plan import Event, RunRows, Splice, build
from hypic_rag.engine.policy import Compose, Policy
from hypic_rag.engine.state import SequenceState, TorchSequence
from hypic_rag.prompt import Part

State = TypeVar("State", bound=SequenceState)


@dataclass
class ScheduledSequence(Generic[State]):
    """The rows of one sequence in a pass. ``ids`` and ``positions`` are theirs; ``events`` also has the splices."""

    state: State
    compose: Compose
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def rows(self, ids: Sequence[int]) -> None:
        self.positions += range(self.state.position, self.state.position + len(ids))
        self.state.position += len(ids)
        self.ids += ids
        self.events.append(RunRows(len(ids)))

    def splice(self, entry: Entry | DeviceEntry) -> None:
        """Place an entry's interior here; its seam, the entry's first tokens, was run as rows just before."""
        self.state.place(entry, len(self.state.row_positions) + len(self.ids))
        self.events.append(Splice(len(self.state.segments) - 1))


Scheduled = ScheduledSequence[TorchSequence]


def cached_seam(part: Part, policy: Policy) -> int | None:
    """Return the seam with which a part is cached, in tokens, or None where all its rows are live."""
    if policy.mode == "full" or part.kind == "live":
        return None
    if part.kind == "leading":
        return 0
    return policy.seam_tokens if len(part.ids) > policy.seam_tokens else None


def lay_out(
    state: State, parts: Sequence[Part], entries: Mapping[Part, Entry | DeviceEntry], policy: Policy
) -> ScheduledSequence[State]:
    """Continue ``state`` (changed) by parts; ``entries`` has those that are cached."""
    active = ScheduledSequence(state, policy.compose)
    for part in parts:
        seam = cached_seam(part, policy)
        if seam is None:
            active.rows(part.ids)
        else:
            if seam:
                active.rows(part.ids[:seam])
            active.splice(entries[part])
    return active


@torch.inference_mode()
def run(model: Any, cache_spec: CacheSpec, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
    """Run one pass over all sequences of the batch, whose states it advances; those past a switch of rotation run
    alone, since transformers takes the frequencies from the largest position of a pass.

    keep: row numbers within each sequence whose logits are wanted. Returns (n_kept, vocabulary) a sequence.
    """
    past = [i for i, active in enumerate(batch) if cache_spec.switches(active.state.position)]
    together = [i for i in range(len(batch)) if i not in past]
    logits: dict[int, Tensor] = {}
    for these in [*([together] if together else []), *([i] for i in past)]:
        made = _pass(model, cache_spec, [batch[i] for i in these], [keep[i] for i in these])
        logits |= dict(zip(these, made, strict=True))
    return [logits[i] for i in range(len(batch))]


def _pass(model: Any, cache_spec: CacheSpec, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
    device = model.device
    plan = build([active.events for active in batch], device)
    positions = torch.tensor([p for active in batch for p in active.positions], device=device)
    rope_offsets = []
    for active in batch:
        offsets = [interior.offset for interior in active.state.segments]
        rope_offsets.append(tuple(rotary.turns(offsets, device) for rotary in cache_spec.rotaries))
        active.state.row_positions += active.positions
    states, compose = tuple(a.state for a in batch), tuple(a.compose for a in batch)
    assembly = TorchAssembly(plan, positions, states, compose, tuple(rope_offsets))
    ids = torch.tensor([[token for active in batch for token in active.ids]], dtype=torch.long, device=device)
    kept = torch.tensor(
        [start + row for (start, _), rows in zip(plan.spans, keep, strict=True) for row in rows],
        device=device,
    )
    with cache_spec.current.during(assembly):
        logits = model(input_ids=ids, position_ids=positions[None], use_cache=False, logits_to_keep=kept).logits[0]
    return list(logits.split([len(rows) for rows in keep]))
