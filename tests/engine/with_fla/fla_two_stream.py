"""How the two-stream oracle steps through the layers of flash-linear-attention, by their own caches."""

from typing import Any

import torch
import torch.nn.functional as F
from fla.models.utils import Cache
from torch import Tensor, nn
from two_stream import Piece, Stepped

from hypic_rag.engine.policy import Policy


class FlaStepped(Stepped):
    """Time mixing (``attn``) and channel mixing (``ffn``), one token a step; RWKV-7's first values go beside it."""

    def __init__(self, original: Any, pieces: list[Piece], policy: Policy, config: Any):
        nn.Module.__init__(self)
        self.original, self.pieces, self.policy, self.config = original, pieces, policy, config
        self.is_time_mix = hasattr(original, "o_proj")
        self.keyword = "past_key_values" if self.is_time_mix else "state"
        self.returns = 1
        self.position = {
            row: piece.offset + i
            for piece in pieces
            for rows in (piece.isolated, piece.active)
            for i, row in enumerate(rows)
        }

    def forward(self, hidden_states: Tensor, *_: Any, v_first: Tensor | None = None, **__: Any) -> Any:
        self.v_first, self.first_values = v_first, {}
        result = super().forward(hidden_states)
        if not self.first_values:
            return result
        return *result[:-1], torch.cat([self.first_values[row] for row in range(hidden_states.shape[1])], dim=1)

    def run(self, cache: Any, x: Tensor, rows: range, out: Tensor) -> None:
        for row in rows:
            self.of(cache)._seen_tokens = self.position[row]  # where RetNet rotates
            options: dict[str, Any] = {self.keyword: cache}
            if self.is_time_mix:
                options["use_cache"] = True
            if self.v_first is not None:
                options["v_first"] = self.v_first[:, row : row + 1]
            y = self.original(x[row][None, None], **options)
            self.returns = len(y)
            out[row] = y[0][0, 0]
            if self.v_first is not None:
                self.first_values[row] = y[-1]

    # The one place that knows how flash-linear-attention keeps a layer's state.

    def fresh(self) -> Any:
        cache = Cache()
        while len(cache.layers) <= self.original.layer_idx:
            cache.layers.append(cache.layer_class_to_replicate())
        if not self.is_time_mix:
            self.of(cache).update(offset=0)  # channel mixing looks for its row
        return cache

    def started(self, cache: Any) -> bool:
        state = self.of(cache).state
        return state is not None and any(kept is not None for kept in state.values())

    def state(self, cache: Any) -> Tensor | None:
        return self.of(cache).state["recurrent_state"] if self.started(cache) else None

    def set_state(self, cache: Any, state: Tensor | None) -> None:
        kept = self.of(cache).state
        if kept["recurrent_state"] is not None:
            kept["recurrent_state"] = torch.zeros_like(kept["recurrent_state"]) if state is None else state

    def tail(self, cache: Any) -> Any:
        state = self.of(cache).state
        return None if state is None else {name: copied(state[name]) for name in ("conv_state", "ffn_state")}

    def set_tail(self, cache: Any, tail: Any) -> None:
        state = self.of(cache).state
        for name in ("conv_state", "ffn_state"):
            if state is not None and state[name] is not None:
                state[name] = zeroed(state[name]) if tail is None or tail[name] is None else copied(tail[name])


def copied(kept: Any) -> Any:
    """A tensor, or three of them, or None."""
    if kept is None:
        return None
    return kept.clone() if isinstance(kept, Tensor) else tuple(t.clone() for t in kept)


def zeroed(kept: Any) -> Any:
    return torch.zeros_like(kept) if isinstance(kept, Tensor) else tuple(torch.zeros_like(t) for t in kept)


class Masked(nn.Module):
    """A full-attention layer over both streams: its own weights and rotation, and torch's softmax over what is seen."""

    def __init__(self, original: Any, pieces: list[Piece], policy: Policy, config: Any):
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, position_ids: Tensor, **_: Any) -> Any:
        m = self.original
        q, k, v = (project(hidden_states).unflatten(-1, (-1, m.head_dim)) for project in (m.q_proj, m.k_proj, m.v_proj))
        rows = range(hidden_states.shape[1])
        turned = [
            torch.cat([m.rotary(t[:, i : i + 1], t[:, i : i + 1], int(position_ids[0, i]))[0] for i in rows], dim=1)
            for t in (q, k)
        ]
        q, k, v = (t.transpose(1, 2) for t in (*turned, v))
        seen = attention_mask
        if m.window_size is not None:
            at = position_ids[0]
            seen = seen.masked_fill(at[:, None] - at >= m.window_size, float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return m.o_proj(out.transpose(1, 2).flatten(2)), None, None


def stepped(original: Any, pieces: list[Piece], policy: Policy, config: Any) -> nn.Module:
    """Full attention is known by its rotation's base."""
    how = Masked if hasattr(original, "rope_theta") else FlaStepped
    return how(original, pieces, policy, config)
