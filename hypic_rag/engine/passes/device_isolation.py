"""Isolated prefill on a GPU: each segment from a zero state, all of them in one pass of many rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypic_kernels import transition
from hypic_kernels.plan import LinearPlan
from torch import Tensor

from hypic_rag.engine.layers import AttentionLayer, LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.gated_delta_kernels import prepared
from hypic_rag.engine.passes.many_rows import ManyRows, causal_on_device, isolated_plan
from hypic_rag.engine.passes.prefill_kernels import ChunkedGatedDelta
from hypic_rag.engine.passes.torch_isolation import Kept, nothing_kept


@dataclass(frozen=True)
class DeviceIsolation(ManyRows):
    """A packed prefill of segments, each from a zero state; as ``TorchIsolation``, and kept tensors stay on the GPU.

    plan: of the convolutions. cu: (n_stretches + 1,) int64, edges of seams and interiors. interiors: (S,) which of the
    stretches they are; behind_seams: those that a seam stands before (a leading segment has none). seam_rows: (n,) the
    seams' rows; cu_seams their edges. first, stop: (S,) int32, the interiors' rows.
    """

    positions: Tensor
    spans: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...]
    plan: LinearPlan
    cu: Tensor
    interiors: Tensor
    behind_seams: Tensor
    seam_rows: Tensor
    cu_seams: Tensor
    first: Tensor
    stop: Tensor
    kept: Kept = field(default_factory=nothing_kept)

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
            positions, tuple(spans), tuple(dropped for dropped, _ in sizes), isolated_plan(spans, device),
            whole(edges), whole(interiors), whole(behind_seams), whole(seam_rows), whole(cu_seams),
            whole(first, torch.int32), whole(stop, torch.int32),
        )  # fmt: skip

    def gated_delta_rule(
        self, slot: int, layer: LinearLayer, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        """Keep tail, T and S of each interior."""
        kernel = m.conv1d.weight.shape[-1]
        tails = qkv.new_empty(len(self.spans), kernel - 1, qkv.shape[1])
        q, k, v, log_decay, beta = prepared(m, qkv, a, b, beta_scale, self.plan, tails, qkv.dtype)
        rule = ChunkedGatedDelta(q, k, v, log_decay, beta, self.cu)
        start = v.new_zeros(len(self.cu) - 1, *v.shape[1:2], k.shape[-1], v.shape[-1], dtype=torch.float32)
        if len(self.behind_seams):
            start[self.behind_seams] = rule.end_of(self.seam_rows, self.cu_seams)
        out, end = rule.run(start)
        T = transition.transitions(k, rule.w[0], log_decay, self.first, self.stop)
        S = end[self.interiors] - T @ start[self.interiors]
        for s in range(len(self.spans)):
            self.kept[slot][s] = {"T": T[s], "S": S[s], "tail": tails[s]}
        return out

    def attend(
        self, slot: int, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
    ) -> Tensor:
        """Attend within every segment alone; its interior's keys (at local positions) and values are kept."""
        outputs = []
        for s, ((start, stop), dropped) in enumerate(zip(self.spans, self.dropped, strict=True)):
            outputs.append(causal_on_device(q[:, start:stop], k[:, start:stop], v[:, start:stop], params))
            kept = slice(start + dropped, stop)
            self.kept[slot][s] = {"K": _by_token(k[:, kept]), "V": _by_token(v[:, kept])}
        return torch.cat(outputs, dim=1)


def _by_token(x: Tensor) -> Tensor:
    """Lay (H, n, D) token by token, as pools and the host's memory have it."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)
