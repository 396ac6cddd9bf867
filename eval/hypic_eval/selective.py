"""Selective recompute, the idea of CacheBlend (arXiv 2405.16444): of the documents' tokens, those whose keys and values
deviate most from what they would be in the prompt are run again, and the others' come from the cache.

In models of full attention alone. Entries are those of seam 0. Where tokens deviate is found in the second layer, as
the first one's keys and values depend on a token and its place alone: a pass over all documents' tokens goes that far.
A second pass takes the tokens with the largest squared deviation of key and value, and all live ones, through the whole
model; in each layer they attend to the mixture. The system text is an exact prefix, and never run again.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypic_rag.engine.assemble import Scheduled
from hypic_rag.engine.backends.base import SequenceRequest, StartedSequence
from hypic_rag.engine.backends.torch import TorchBackend
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.dense_attention import dense
from hypic_rag.engine.scheduler import Scheduler
from hypic_rag.engine.session_cache import SessionCache
from hypic_rag.engine.state import KVCache, TorchSequence
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

Table = dict[int, tuple[Tensor, Tensor]]
"""A layer's slot -> keys (H, L, D), turned to their places, and values (H, L, Dv), of all L tokens of a prompt."""


def view(engine: "SegmentEngine", percent: int) -> "SegmentEngine":
    """Return the engine that recomputes so many percent of the documents' tokens. It is asked by ``Policy(seam 0)``.

    Raises BadInput where the model is not of full attention alone, or does not run in torch.
    """
    names = {layer.name for layer in engine.cache_spec.layers}
    if names != {"attention"}:
        raise BadInput(
            f"selective recompute is for models of full attention alone, and {engine.model_name} has "
            f"{', '.join(sorted(names))}: the state of a recurrent layer has no tokens to choose from. Leave "
            "selective out of --modes"
        )
    if engine.pool is not None:
        raise BadInput("selective recompute runs in torch alone: set HYPIC_DEVICE_MEMORY=0")
    backend = SelectiveBackend(engine.model, engine.cache_spec, percent)
    scheduler = Scheduler(engine._lock, engine.cache_spec, backend, backend.conversations)
    other = engine.within(engine.namespace)
    other.__dict__.update(backend=backend, conversations=backend.conversations, _scheduler=scheduler)
    return other


class SelectiveBackend(TorchBackend):
    """Runs a prompt's first pass in two, and what follows as if all had been run in full."""

    def __init__(self, model: Any, cache_spec: CacheSpec, percent: int):
        super().__init__(model, cache_spec, SessionCache(0))
        self.percent = percent

    def start(self, requests: Sequence[SequenceRequest]) -> list[StartedSequence[TorchSequence] | None]:
        return [one and self._counted(one) for one in super().start(requests)]

    def _counted(self, one: StartedSequence[TorchSequence]) -> StartedSequence[TorchSequence]:
        n = n_selected(sum(use.n_tokens for use in one.report.segments), self.percent)
        return replace(one, report=replace(one.report, computed_tokens=one.report.computed_tokens + n))

    def run(self, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
        """Run each sequence alone."""
        return [
            self._blend(active, rows)
            if active.state.segments
            else super(SelectiveBackend, self).run([active], [rows])[0]
            for active, rows in zip(batch, keep, strict=True)
        ]

    @torch.inference_mode()
    def _blend(self, active: Scheduled, keep: Sequence[int]) -> Tensor:
        """Run the first pass of a sequence, and leave it with keys and values of its own for every token."""
        state = active.state
        if self.cache_spec.switches(state.position):
            raise BadInput(f"selective recompute cannot reuse keys beyond {self.cache_spec.switch_at} tokens")
        ids = torch.zeros(state.position, dtype=torch.long)
        ids[active.positions] = torch.tensor(active.ids)
        cached = [part for part in state.parts if part.kind != "live"]
        documents: list[int] = []
        for segment, part in zip(state.segments, cached, strict=True):
            ids[segment.position : segment.position + segment.n_tokens] = torch.tensor(part.ids)
            if part.kind == "document":
                documents += range(segment.position, segment.position + segment.n_tokens)
        table = cached_table(self.cache_spec, state)
        selected = self._selected(ids, table, documents, active.positions)
        rows = sorted([*selected, *active.positions])
        blended = BlendedPass(torch.tensor(rows, device=state.device), table)
        at = {row: i for i, row in enumerate(rows)}
        kept = torch.tensor([at[active.positions[row]] for row in keep], device=state.device)
        logits = self._run(ids, blended, logits_to_keep=kept)
        state.segments, state.row_positions = [], list(range(state.position))
        state.kv = {slot: KVCache(keys, values, state.position) for slot, (keys, values) in table.items()}
        return logits

    def _selected(self, ids: Tensor, table: Table, documents: Sequence[int], live: Sequence[int]) -> list[int]:
        """Return the positions of the documents' tokens that are run again. The table is fresh, for all tokens, in the
        layers that were run for this."""
        last = min(1, len(self.cache_spec.layers) - 1)
        before = table[last]
        rows = torch.tensor(sorted([*documents, *live]), device=before[0].device)
        probe = BlendedPass(rows, table, last)
        with suppress(ProbeEnds):
            self._run(ids, probe, logits_to_keep=1)
        fresh = table[last]
        deviation = sum((a - b).float().square().sum((0, 2)) for a, b in zip(fresh, before, strict=True))
        assert isinstance(deviation, Tensor)
        found = deviation[list(documents)].topk(n_selected(len(documents), self.percent)).indices
        return [documents[i] for i in found.tolist()]

    def _run(self, ids: Tensor, one: "BlendedPass", logits_to_keep: Tensor | int) -> Tensor:
        given = ids.to(one.positions.device)[one.positions][None]
        with self.cache_spec.current.during(one):  # type: ignore[arg-type]  # no layer asks for the other verbs
            made = self.model(
                input_ids=given, position_ids=one.positions[None], use_cache=False, logits_to_keep=logits_to_keep
            )
        logits: Tensor = made.logits[0]
        return logits


def n_selected(n_tokens: int, percent: int) -> int:
    return ceil(n_tokens * percent / 100)


def cached_table(cache_spec: CacheSpec, state: TorchSequence) -> Table:
    """Gather the cached keys, turned to their places, and values; zero where a token is live."""
    offsets = [segment.offset for segment in state.segments]
    table: Table = {}
    for slot, layer in enumerate(cache_spec.layers):
        assert isinstance(layer, AttentionLayer)
        kept = [segment.layers[slot] for segment in state.segments]
        keys, values = (
            kept[0][name].new_zeros(layer.n_heads, state.position, dim)
            for name, dim in (("K", layer.k_dim), ("V", layer.v_dim))
        )
        turns = None if layer.rotary is None else layer.rotary.turns(offsets, state.device)
        for i, segment in enumerate(state.segments):
            here = slice(segment.position, segment.position + segment.n_tokens)
            values[:, here] = kept[i]["V"]
            if layer.rotary is None or turns is None:
                keys[:, here] = kept[i]["K"]
            else:
                keys[:, here] = layer.rotary.turn(kept[i]["K"], turns[0][i], -turns[1][i]).to(keys.dtype)
        table[slot] = keys, values
    return table


class ProbeEnds(Exception):
    """The keys and values of the layer that decides are there."""


@dataclass(frozen=True)
class BlendedPass:
    """Rows at ``positions`` that attend to the table, into which their own keys and values go.

    last: the layer at whose keys and values the pass ends, or None.
    """

    positions: Tensor
    table: Table
    last: int | None = None
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        keys, values = (t.index_copy(1, self.positions, new) for t, new in zip(self.table[slot], (k, v), strict=True))
        self.table[slot] = keys, values
        if slot == self.last:
            raise ProbeEnds
        return dense(q, keys, values, self._mask(layer.window, keys.shape[1]), params)

    def _mask(self, window: int | None, n_keys: int) -> Tensor:
        """Return (N, L), True where a row sees a token."""
        if window not in self._masks:
            back = self.positions[:, None] - torch.arange(n_keys, device=self.positions.device)
            self._masks[window] = (back >= 0) if window is None else (back >= 0) & (back < window)
        return self._masks[window]
