"""Passes of many rows on a GPU: isolated prefill, and long prompts, by flash-linear-attention's chunk kernels.

The rows of such a pass keep every multiprocessor busy, so nothing is captured as a graph, and attention is torch's.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.engine.device.gated_delta import prepared
from hypic_rag.engine.device.held import Held

if TYPE_CHECKING:
    from hypic_rag.engine.attention import Scoring, Seat


@cache
def is_there() -> bool:
    """Whether flash-linear-attention can be imported."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it compiles with torch.compile, which has some to give
            import_module("fla.ops.gated_delta_rule")
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class DeviceIsolation:
    """A packed prefill of segments, each from a zero state; as ``context.Isolation``, and kept tensors stay on the GPU.

    plan: of the convolutions. cu: (n_stretches + 1,) int64, edges of seams and interiors. interiors: (S,) which of the
    stretches they are; behind_seams: those that a seam stands before (a leading segment has none). seam_rows: (n,) the
    seams' rows; cu_seams their edges. first, stop: (S,) int32, the interiors' rows.
    """

    positions: Tensor
    spans: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...]
    plan: Any
    cu: Tensor
    interiors: Tensor
    behind_seams: Tensor
    seam_rows: Tensor
    cu_seams: Tensor
    first: Tensor
    stop: Tensor
    kept: defaultdict[int, defaultdict[int, dict[str, Tensor]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    @classmethod
    def of(cls, positions: Tensor, sizes: Sequence[tuple[int, int]]) -> "DeviceIsolation":
        """sizes: of each segment, rows dropped and all rows; at least one of them is kept."""
        device = positions.device
        edges, cu_seams, interiors, behind_seams = [0], [0], list[int](), list[int]()
        seam_rows, first, stop, spans = list[int](), list[int](), list[int](), list[tuple[int, int]]()
        for dropped, n in sizes:
            start = edges[-1]
            if dropped:
                edges.append(start + dropped)
                behind_seams.append(len(edges) - 1)
                seam_rows += range(start, start + dropped)
                cu_seams.append(cu_seams[-1] + dropped)
            interiors.append(len(edges) - 1)
            edges.append(start + n)
            spans.append((start, start + n))
            first.append(start + dropped)
            stop.append(start + n)

        def whole(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            positions, tuple(spans), tuple(dropped for dropped, _ in sizes), _isolated_plan(spans, device),
            whole(edges), whole(interiors), whole(behind_seams), whole(seam_rows), whole(cu_seams),
            whole(first, torch.int32), whole(stop, torch.int32),
        )  # fmt: skip

    def gated_delta(self, slot: int, m: Any, qkv: Tensor, a: Tensor, b: Tensor, strength: float) -> Tensor:
        """As ``DevicePass.gated_delta``; keeps tail, T and S of each interior."""
        from hypic_kernels import transition

        kernel = m.conv1d.weight.shape[-1]
        tails = qkv.new_empty(len(self.spans), kernel - 1, qkv.shape[1])
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, strength, self.plan, tails, qkv.dtype)
        rule = Chunks(q, k, v, log_decay, beta, self.cu)
        start = v.new_zeros(len(self.cu) - 1, *v.shape[1:2], k.shape[-1], v.shape[-1], dtype=torch.float32)
        if len(self.behind_seams):
            start[self.behind_seams] = rule.end_of(self.seam_rows, self.cu_seams)
        out, end = rule.run(start)
        T = transition.transitions(k, rule.w[0], log_decay, self.first, self.stop)
        S = end[self.interiors] - T @ start[self.interiors]
        for s in range(len(self.spans)):
            self.kept[slot][s] = {"T": T[s], "S": S[s], "tail": tails[s]}
        return out

    def attend(self, seat: "Seat", q: Tensor, k: Tensor, v: Tensor, scoring: "Scoring") -> Tensor:
        """As ``engine.attention.attend``: every segment sees itself alone."""
        outputs = []
        for s, ((start, stop), dropped) in enumerate(zip(self.spans, self.dropped, strict=True)):
            outputs.append(_causal(q[:, start:stop], k[:, start:stop], v[:, start:stop], scoring))
            kept = slice(start + dropped, stop)
            self.kept[seat.slot][s] = {"K": _by_token(k[:, kept]), "V": _by_token(v[:, kept])}
        return torch.cat(outputs, dim=1)


@dataclass(frozen=True)
class LongPass:
    """The first pass of one sequence of many rows and no cached interior; its state and keys go to the pools."""

    pool: DevicePool
    held: Held
    positions: Tensor
    plan: Any
    cu: Tensor

    @classmethod
    def of(cls, pool: DevicePool, held: Held, positions: Tensor) -> "LongPass":
        n, device = len(positions), positions.device
        plan = _isolated_plan([(0, n)], device, tail_to=held.next_slot)
        return cls(pool, held, positions, plan, torch.tensor([0, n], device=device))

    def gated_delta(self, slot: int, m: Any, qkv: Tensor, a: Tensor, b: Tensor, strength: float) -> Tensor:
        pools = self.pool.layers[slot]
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, strength, self.plan, pools.slots["tail"], qkv.dtype)
        out, end = Chunks(q, k, v, log_decay, beta, self.cu).run(None)
        pools.slots["S"][self.held.next_slot] = end[0]
        return out

    def attend(self, seat: "Seat", q: Tensor, k: Tensor, v: Tensor, scoring: "Scoring") -> Tensor:
        pools, at = self.pool.layers[seat.slot].tokens, slice(self.held.token_at, self.held.token_at + k.shape[1])
        pools["K"][at], pools["V"][at] = k.transpose(0, 1), v.transpose(0, 1)
        return _causal(q, k, v, scoring)


class Chunks:
    """The gated delta rule over stretches of rows, from states of their own. cu: (n_stretches + 1,) their edges.

    q, k: (N, Hk, K) and v: (N, H, V) in the model's type, in which fla's kernels multiply; log_decay, beta: (N, H)
    float32.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, cu: Tensor):
        from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
        from fla.ops.utils import chunk_local_cumsum
        from fla.ops.utils.constant import RCP_LN2  # its kernels take powers of two
        from hypic_kernels.transition import CHUNK

        self.q, self.k, self.v, self.cu = q[None], k[None], v[None], cu
        self.total = chunk_local_cumsum(log_decay[None], chunk_size=CHUNK, scale=RCP_LN2, cu_seqlens=cu)
        self.w, self.u, _ = chunk_gated_delta_rule_fwd_intra(self.k, self.v, self.total, beta[None], cu)

    def end_of(self, rows: Tensor, cu: Tensor) -> Tensor:
        """States (n, H, K, V) float32 that stretches of these rows alone leave, from zero."""
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        k, w, u, total = (t[:, rows].contiguous() for t in (self.k, self.w, self.u, self.total))
        return chunk_gated_delta_rule_fwd_h(k, w, u, total, output_final_state=True, cu_seqlens=cu)[2]  # type: ignore[no-any-return]

    def run(self, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """start: (n_stretches, H, K, V) float32, None is zero. Returns what rows read (N, H, V), and the end states."""
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
        from fla.ops.common.chunk_o import chunk_fwd_o

        h, written, end = chunk_gated_delta_rule_fwd_h(
            self.k, self.w, self.u, self.total, initial_state=start, output_final_state=True, cu_seqlens=self.cu
        )
        out = chunk_fwd_o(self.q, self.k, written, h, self.total, scale=1.0, cu_seqlens=self.cu)
        return out[0], end


def _isolated_plan(spans: Sequence[tuple[int, int]], device: torch.device, tail_to: int | None = None) -> Any:
    """Of convolutions that begin with zeros at each span; the tails go to slots 0, 1, ... or the one given."""
    from hypic_kernels.plan import LinearPlan

    reach = torch.cat([torch.arange(stop - start) for start, stop in spans])
    behind = torch.tensor([stop - start for start, stop in spans])
    n = len(spans)
    slots = range(n) if tail_to is None else [tail_to]
    end = torch.tensor([stop for _, stop in spans])
    none = torch.zeros(0)
    parts = {
        "reach": torch.cat((reach, behind)), "back": torch.full((len(reach) + n,), -1), "end": end,
        "tail_to": torch.tensor(list(slots)),
        **dict.fromkeys(
            ("run_row", "run_n", "run_slot", "run_tokens", "run_compose", "first_run", "state_from", "state_to"), none
        ),
    }  # fmt: skip
    return LinearPlan(**{name: t.to(device, torch.int32) for name, t in parts.items()})


def _by_token(x: Tensor) -> Tensor:
    """(H, n, D) that lies token by token, as pools and the host's memory have it."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _causal(q: Tensor, k: Tensor, v: Tensor, scoring: "Scoring") -> Tensor:
    from hypic_rag.engine.attention import causal

    if scoring.is_plain and q.is_cuda:
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scoring.scale, enable_gqa=True
        )[0]
    return causal(q, k, v, scoring, None)
