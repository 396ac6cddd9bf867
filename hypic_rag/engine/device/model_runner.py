"""The assembled forward on a GPU: static arrays by bucket, one CUDA graph each, states and keys in pools."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.device.compile_notice import patience
from hypic_rag.engine.device.graph_bucket import MAX_ROWS, BucketSizes, GraphBucket
from hypic_rag.engine.device.prepare_inputs import Scheduled, fill, partner, sizes_of
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.engine.passes.device_assembly import DeviceAssembly
from hypic_rag.engine.passes.device_isolation import DeviceIsolation
from hypic_rag.engine.passes.device_long_prompt import DeviceLongPrompt
from hypic_rag.engine.plan import Event, RunRows
from hypic_rag.engine.prefill import PrefillPasses

MAX_BUCKETS = 64  # kept ready, each a few MB of graph and arrays
MAX_PREFILL_ROWS = 16384  # each pass reads the weights, and of a model of experts nearly all of them


@dataclass
class CapturedGraph:
    """A bucket, and from its second pass on its graph with the logits (K, vocabulary) that a replay writes."""

    bucket: GraphBucket
    context: DeviceAssembly
    graph: torch.cuda.CUDAGraph | None = None
    logits: Tensor | None = None
    n_passes: int = 0


@dataclass
class ModelRunner:
    """graphs: whether to capture; without, every pass is launched kernel by kernel, and gives the same bits.

    in_chunks: whether prefill and the first pass of a prompt of many rows go by the prefill kernels. dead_below: see
    ``DevicePool.put``. prefill_bytes: of entries that a prefill may make in a pass.
    """

    model: Any
    cache_spec: CacheSpec
    pool: DevicePool
    graphs: bool = True
    in_chunks: bool = False
    dead_below: float = 0.0
    prefill_bytes: float = math.inf
    _captured: dict[BucketSizes, CapturedGraph] = field(default_factory=dict)
    _memory: Any = None

    def __post_init__(self) -> None:
        device = self.model.device
        self.rotated_dims = tuple(rotated_dims(self.cache_spec))
        self.partners = tuple(
            torch.from_numpy(partner(rotary, dim)).to(device)
            for rotary, dim in zip(self.cache_spec.rotaries, self.rotated_dims, strict=True)
        )
        self.graphs = self.graphs and device.type == "cuda"

    @property
    def prefill_passes(self) -> PrefillPasses:
        if not self.in_chunks:
            return PrefillPasses.in_torch(self.model.device)
        return PrefillPasses(DeviceIsolation.of, MAX_PREFILL_ROWS, self.prefill_bytes, patience)

    def reset(self) -> None:
        """Drop, after a pass that did not finish, all that is in the pools and all that is kept for the next passes."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)  # it may be running still
        self._captured.clear()
        self.pool.reset()

    @torch.inference_mode()
    def run(self, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
        """Run the batch as ``assemble.run`` does: in one pass, or several where there are more than MAX_ROWS rows."""
        self.pool.flush()
        kept: list[list[Tensor]] = [[] for _ in batch]
        long = [i for i, active in enumerate(batch) if self._is_long(active)]
        for i in long:
            kept[i].append(self._run_long(batch[i], keep[i]))
        waiting = [(i, piece) for i, active in enumerate(batch) if i not in long for piece in cut(active, MAX_ROWS)]
        first_row = [0] * len(batch)
        while waiting:
            now, later, n_rows = list[tuple[int, Scheduled]](), list[tuple[int, Scheduled]](), 0
            for i, piece in waiting:
                taken = {j for j, _ in now} | {j for j, _ in later}
                if i not in taken and n_rows + len(piece.ids) <= MAX_ROWS:
                    now.append((i, piece))
                    n_rows += len(piece.ids)
                else:
                    later.append((i, piece))
            wanted = []
            for i, piece in now:
                stop = first_row[i] + len(piece.ids)
                wanted.append([row - first_row[i] for row in keep[i] if first_row[i] <= row < stop])
                first_row[i] = stop
            logits = self._pass([piece for _, piece in now], wanted)
            for (i, _), made in zip(now, logits, strict=True):
                kept[i].append(made.clone() if later else made)  # the next pass may write the same memory
            waiting = later
        return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in kept]

    def _is_long(self, active: Scheduled) -> bool:
        state = active.state
        many = len(active.ids) > MAX_ROWS and state.slots.is_fresh and not state.segments
        return many and self.in_chunks

    def _run_long(self, active: Scheduled, keep: Sequence[int]) -> Tensor:
        device, slots = self.model.device, active.state.slots
        positions = torch.tensor(active.positions, device=device)
        self.pool.wait()
        with patience(), self.cache_spec.current.during(DeviceLongPrompt.of(self.pool, slots, positions)):
            out = self.model(
                input_ids=torch.tensor([active.ids], device=device),
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=torch.tensor(list(keep), device=device),
            )
        slots.advance()
        active.state.row_positions += active.positions
        return out.logits[0]  # type: ignore[no-any-return]

    def _pass(self, batch: Sequence[Scheduled], keep: Sequence[Sequence[int]]) -> list[Tensor]:
        sizes = sizes_of(batch, keep).rounded()
        captured = self._captured.pop(sizes, None) or self._open(sizes)
        self._captured[sizes] = captured  # the last used stand last
        if len(self._captured) > MAX_BUCKETS:
            del self._captured[next(iter(self._captured))]
        captured.bucket.wait()
        fill(captured.bucket, batch, keep, self.cache_spec.rotaries)
        captured.bucket.send()
        if not sizes.is_spliced:  # others wait layer by layer
            self.pool.wait()
        if captured.graph is not None:
            captured.graph.replay()
        elif self.graphs and captured.n_passes:  # the first pass has compiled and tuned what it launches
            self._capture(captured).replay()
        else:
            with patience():
                captured.logits = self._forward(captured)
        captured.n_passes += 1
        for active in batch:
            active.state.slots.advance()
            active.state.row_positions += active.positions
        assert captured.logits is not None
        lengths = [len(rows) for rows in keep]
        return list(captured.logits[: sum(lengths)].split(lengths))

    def _open(self, sizes: BucketSizes) -> CapturedGraph:
        bucket = GraphBucket(sizes, self.rotated_dims, self.model.device)
        turns = tuple((*tables, of) for tables, of in zip(bucket.turns, self.partners, strict=True))
        return CapturedGraph(
            bucket,
            DeviceAssembly(
                self.pool, bucket.linear, bucket.attention, turns, bucket.positions, sizes.attention, sizes.is_spliced
            ),
        )

    def _forward(self, captured: CapturedGraph) -> Tensor:
        bucket = captured.bucket
        with self.cache_spec.current.during(captured.context):
            out = self.model(
                input_ids=bucket.ids[None],
                position_ids=bucket.positions[None],
                use_cache=False,
                logits_to_keep=bucket.kept,
            )
        return out.logits[0]  # type: ignore[no-any-return]

    def _capture(self, captured: CapturedGraph) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            captured.logits = self._forward(captured)
        self._memory = self._memory or graph.pool()
        captured.graph = graph
        return graph


def cut(active: Scheduled, max_rows: int) -> list[Scheduled]:
    """Cut a sequence into passes of at most ``max_rows`` rows each, one after the other."""
    if len(active.ids) <= max_rows:
        return [active]
    pieces: list[Scheduled] = []
    events: list[Event] = []
    start = n = 0

    def close() -> None:
        nonlocal start, n, events
        pieces.append(
            replace(active, ids=active.ids[start : start + n], positions=active.positions[start : start + n],
                    events=events)
        )  # fmt: skip
        start, n, events = start + n, 0, []

    for event in active.events:
        if not isinstance(event, RunRows):
            events.append(event)
            continue
        left = event.n
        while left:
            here = min(left, max_rows - n)
            events.append(RunRows(here))
            n, left = n + here, left - here
            if n == max_rows:
                close()
    if n or events:
        close()
    return pieces


def rotated_dims(cache_spec: CacheSpec) -> list[int]:
    """Return, for each of the model's rotations, the head size of the layers that use it."""
    return [
        next(
            layer.k_dim for layer in cache_spec.layers
            if isinstance(layer, AttentionLayer) and layer.rotary is rotary
        )
        for rotary in cache_spec.rotaries
    ]  # fmt: skip
