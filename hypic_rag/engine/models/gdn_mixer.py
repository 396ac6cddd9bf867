"""The Gated DeltaNet mixer that stands in for Hugging Face's: same weights, our recurrence and convolution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic_rag.engine.context import Assembly, Context, Isolation
from hypic_rag.engine.convolution import convolve, tails
from hypic_rag.engine.families import gdn
from hypic_rag.engine.models.layout import LinearLayer
from hypic_rag.engine.recurrence import splicer, walk
from hypic_rag.engine.state import LinearState


@dataclass(frozen=True)
class Projected:
    """One row a token. qkv: (N, C), before the convolution; z: (N, H * V), output gate; b, a: (N, H)."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class GDNMixer(nn.Module):
    """Wraps a Hugging Face GatedDeltaNet module; ``project`` reads that architecture's input projections."""

    def __init__(self, original: Any, project: Callable[[Any, Tensor], Projected]):
        super().__init__()
        self.original = original
        self.project = project
        self.layer = int(original.layer_idx)
        self.sizes = LinearLayer(
            gdn.NAME,
            original.num_v_heads,
            original.head_k_dim,
            original.head_v_dim,
            original.conv_dim,
            original.conv_kernel_size,
        )

    def forward(self, hidden_states: Tensor, hypic: Context | None = None, **_: Any) -> Tensor:
        """hidden_states: (1, N, hidden), the rows of the pass. Returns the same shape."""
        if hypic is None:
            raise RuntimeError("this model was loaded for SegmentEngine: call the engine, or load it again")
        m, x = self.original, hidden_states[0]
        projected = self.project(m, x)
        if isinstance(hypic, Isolation):
            out = self._isolated(hypic, projected)
        else:
            out = self._assembled(hypic, projected)
        out = out.to(x.dtype)
        gated = m.norm(out.reshape(-1, m.head_v_dim), projected.z.reshape(-1, m.head_v_dim))
        return m.out_proj(gated.reshape(1, x.shape[0], -1))  # type: ignore[no-any-return]

    def _isolated(self, context: Isolation, projected: Projected) -> Tensor:
        """From zero; keep T and S of each interior (its rows alone) and the convolution tail."""
        plan, sizes = context.plan, self.sizes
        zero = projected.qkv.new_zeros(sizes.kernel - 1, sizes.channels)
        starts = [zero] * len(plan.stretches)
        rows = self._rows(convolve(projected.qkv, plan, starts, self.original.conv1d), projected)
        state = zero.new_zeros(
            len(plan.spans), sizes.n_heads, sizes.k_dim, sizes.v_dim + sizes.k_dim, dtype=torch.float32
        )
        result = walk(rows, plan, state, _no_splice)
        S, T = result.state[..., : sizes.v_dim], result.state[..., sizes.v_dim :]
        S = S - T @ result.marked  # the end state without what the seam left in it
        last = tails(projected.qkv, plan, starts)
        context.kept[self.layer] = [
            {"T": T[s].contiguous(), "S": S[s].contiguous(), "tail": last[s].clone()} for s in range(len(plan.spans))
        ]
        return result.out

    def _assembled(self, context: Assembly, projected: Projected) -> Tensor:
        """From each sequence's running state, composing cached interiors as they come."""
        plan, sequences, sizes = context.plan, context.sequences, self.sizes
        for sequence in sequences:
            if self.layer not in sequence.linear:
                R = torch.zeros(sizes.n_heads, sizes.k_dim, sizes.v_dim, device=projected.qkv.device)
                sequence.linear[self.layer] = LinearState(R, projected.qkv.new_zeros(sizes.kernel - 1, sizes.channels))
        states = [sequence.linear[self.layer] for sequence in sequences]

        def cached(s: int, index: int) -> Any:
            return sequences[s].interiors[index].layers[self.layer]

        starts = [
            states[stretch.sequence].tail
            if stretch.before is None
            else cached(stretch.sequence, stretch.before)["tail"]
            for stretch in plan.stretches
        ]
        rows = self._rows(convolve(projected.qkv, plan, starts, self.original.conv1d), projected)
        splices = [splicer(compose, lambda s, i: (cached(s, i)["T"], cached(s, i)["S"])) for compose in context.compose]
        result = walk(rows, plan, torch.stack([state.R for state in states]), lambda s, i, R: splices[s](s, i, R))
        for s, last in enumerate(tails(projected.qkv, plan, starts)):
            after = plan.last_splice[s]
            tail = last if after is None else cached(s, after)["tail"]
            sequences[s].linear[self.layer] = LinearState(result.state[s].clone(), tail.clone())
        return result.out

    def _rows(self, qkv: Tensor, projected: Projected) -> gdn.Rows:
        m = self.original
        q, k, v = torch.split(qkv, [m.key_dim, m.key_dim, m.value_dim], dim=-1)
        q, k = (_normalize(t.reshape(-1, m.num_k_heads, m.head_k_dim)) for t in (q, k))
        repeats = m.num_v_heads // m.num_k_heads
        if repeats > 1:
            q, k = (t.repeat_interleave(repeats, dim=1) for t in (q, k))
        log_decay = -m.A_log.float().exp() * F.softplus(projected.a.float() + m.dt_bias)
        beta = projected.b.sigmoid().float()
        return gdn.Rows(q * m.head_k_dim**-0.5, k, v.reshape(-1, m.num_v_heads, m.head_v_dim).float(), log_decay, beta)


def _normalize(x: Tensor) -> Tensor:
    """Unit length in float32, with the epsilon of the Hugging Face module."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _no_splice(sequence: int, index: int, R: Tensor) -> Tensor:
    raise AssertionError("an isolated prefill has no cached interiors")
