"""What every recurrence reads of a pass: one record a row, in float32."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class RecurrenceInputs:
    """The inputs of ``S_t = T_t S_{t-1} + k_t v_t^T``; each family's file says which of them shape its ``T_t``.

    q, k: (N, H, K); v: (N, H, V). ``q`` is scaled, and whatever the family normalizes is normalized.
    log_decay: (N, H) one for the whole state, or (N, H, K) one a key channel; <= 0.
    beta: (N, H), write strength of the delta rules. a, b: (N, H, K), RWKV-7's rank-one removal.
    bonus: (H, K), RWKV-6's weight of the current row. dt: (N, H), Mamba-1's time steps.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    bonus: Tensor | None = None
    dt: Tensor | None = None

    def __getitem__(self, rows: slice) -> "RecurrenceInputs":
        return self.map(lambda t: t[rows])

    def to(self, dtype: torch.dtype) -> "RecurrenceInputs":
        return self.map(lambda t: t.to(dtype), also_bonus=True)

    def widened(self) -> "RecurrenceInputs":
        """Give every value head queries and keys of its own, where a head of them serves several."""
        n_heads = self.v.shape[1]
        q, k = (
            t if t.shape[1] == n_heads
            else t[:, :, None].expand(-1, -1, n_heads // t.shape[1], -1).flatten(1, 2)
            for t in (self.q, self.k)
        )  # fmt: skip
        return replace(self, q=q, k=k)

    def map(self, change: Callable[[Tensor], Tensor], also_bonus: bool = False) -> "RecurrenceInputs":
        """Change every tensor that has one entry a row (and the bonus, which has none, where asked)."""
        changed = {}
        for field in fields(self):
            t = getattr(self, field.name)
            skip = t is None or (field.name == "bonus" and not also_bonus)
            changed[field.name] = t if skip else change(t)
        return RecurrenceInputs(**changed)
