from typing import Any

import torch
import two_stream
from torch import Tensor
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from cases import Case


class SteppedState(two_stream.Stepped):
    """A mixer without a convolution: its state is all it keeps."""

    def started(self, cache: Any) -> bool:
        return self.state(cache) is not None

    def compose(self, live: Any, alone: Any, x: Tensor, piece: two_stream.Piece) -> None:
        before = self.state(live)
        if self.policy.compose != "exact":
            self.set_state(live, None)
        self.run(live, x, piece.interior, torch.zeros_like(x))
        if self.policy.compose == "add" and before is not None:
            self.set_state(live, self.state(live) + before)

    def tail(self, cache: Any) -> Any:
        return None

    def set_tail(self, cache: Any, tail: Any) -> None: ...


class SteppedMiniMax(SteppedState):
    """In MiniMax's own cache."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return super().forward(hidden_states), None

    def run(self, cache: Any, x: Tensor, rows: range, out: Tensor) -> None:
        for row in rows:
            out[row] = self.original(x[row][None, None], None, None, cache)[0][0, 0]

    def fresh(self) -> Any:
        return MiniMaxCache()

    def state(self, cache: Any) -> Tensor | None:
        return cache.get_linear_cache(self.original.layer_idx)

    def set_state(self, cache: Any, state: Tensor | None) -> None:
        cache.set_linear_cache(self.original.layer_idx, state)


CASES = {
    "minimax": Case(
        "minimax",
        {
            "head_dim": 16,
            "block_size": 16,
            "num_local_experts": 4,
            "layer_types": ["full_attention", "linear_attention", "linear_attention", "linear_attention"],
        },
        mixers=("layers.1.self_attn", "layers.2.self_attn", "layers.3.self_attn"),
        stepped=SteppedMiniMax,
        live=False,
    )
}
