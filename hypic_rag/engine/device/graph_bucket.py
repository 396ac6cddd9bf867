"""Sizes of a pass, rounded up so that few CUDA graphs serve all, and the static memory that a graph reads."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from hypic_kernels.attention_plan import AttentionBucket, view_plan
from hypic_kernels.plan import LinearPlan
from torch import Tensor

MAX_ROWS = 512  # a pass; more are run in several, since the recurrence's kernel goes row by row
SPLIT = 1024  # keys a piece of attention
SPLIT_OF_ONE_ROW = 256  # where so few rows would leave most of the GPU idle


@dataclass(frozen=True)
class BucketSizes:
    """rows: N. sequences: M. runs: of rows between cached interiors. pieces, partial_rows: of attention. turns: cached
    interiors. kept: rows whose logits are wanted. widest: rows of the longest sequence. is_spliced: whether a cached
    interior is placed in the pass, not only seen."""

    rows: int
    sequences: int
    runs: int
    pieces: int
    partial_rows: int
    turns: int
    kept: int
    widest: int
    is_spliced: bool

    def rounded(self) -> "BucketSizes":
        """Round up to a bucket's sizes: four between two powers of two, rows to multiples of 32."""
        counts = {f.name: _rounded(getattr(self, f.name)) for f in fields(self) if f.name != "is_spliced"}
        for name in ("rows", "widest"):
            if counts[name] > 32:
                counts[name] = -(-getattr(self, name) // 32) * 32
        return BucketSizes(**counts, is_spliced=self.is_spliced)

    @property
    def attention(self) -> AttentionBucket:
        return AttentionBucket(self.rows, self.pieces, self.partial_rows, self.widest, split_of(self.widest))


def split_of(widest: int) -> int:
    return SPLIT_OF_ONE_ROW if widest == 1 else SPLIT


def _rounded(n: int) -> int:
    """Round up, by less than a quarter; below 8 to a power of two."""
    power = 1 << max(0, n - 1).bit_length()
    return power if power <= 8 else -(-n // (power // 8)) * (power // 8)


class GraphBucket:
    """Static arrays of one size, each on the host (numpy views, to fill) and on the device (tensors, to read).

    One copy brings all integers over. ``linear``, ``attention``: as the kernels take them; ``ids``, ``positions``:
    (N,) int64; ``kept``: (K,) int64. ``turns[r]``: cos and sin (n_turns, D_r) float32 of the model's rotation r, by the
    offsets in ``turned``, which stay the same while a sequence is decoded.
    """

    def __init__(self, sizes: BucketSizes, rotated_dims: tuple[int, ...], device: torch.device):
        self.sizes = sizes
        self.turned: list[int] = []
        self._sent = torch.cuda.Event() if device.type == "cuda" else None
        n, m, g = sizes.rows, sizes.sequences, sizes.runs
        lengths = {
            "reach": n + m, "back": n + m, "end": m, "tail_to": m, "run_row": g, "run_n": g, "run_slot": g,
            "run_tokens": g, "run_compose": g, "first_run": m + 1, "state_from": m, "state_to": m,
            "attention": sizes.attention.plan_size,
        }  # fmt: skip
        self.host, on_device, self._integers = _area(lengths, torch.int32, device)
        wide, wide_device, self._wide = _area({"ids": n, "positions": n, "kept": sizes.kept}, torch.int64, device)
        self.host |= wide
        self.linear = LinearPlan(**{f.name: on_device[f.name] for f in fields(LinearPlan)})
        self.attention = view_plan(on_device["attention"], sizes.attention)
        self.ids, self.positions, self.kept = (wide_device[name] for name in ("ids", "positions", "kept"))
        tables = {f"{kind}{r}": sizes.turns * dim for r, dim in enumerate(rotated_dims) for kind in ("cos", "sin")}
        host_turns, device_turns, self._turns = _area(tables, torch.float32, device)
        shaped = {name: (sizes.turns, dim) for r, dim in enumerate(rotated_dims) for name in (f"cos{r}", f"sin{r}")}
        self.host |= {name: array.reshape(shaped[name]) for name, array in host_turns.items()}
        self.turns = tuple(
            (device_turns[f"cos{r}"].view(-1, dim), device_turns[f"sin{r}"].view(-1, dim))
            for r, dim in enumerate(rotated_dims)
        )

    def wait(self) -> None:
        """Wait until what was sent last has left the host's arrays, which may then be filled again: of a prompt in
        several passes the device may still be busy with the one before."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self) -> None:
        """Bring what was filled in to the device, in the current stream."""
        for host, on_device in (self._integers, self._wide, self._turns):
            on_device.copy_(host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def _area(
    lengths: dict[str, int], dtype: torch.dtype, device: torch.device
) -> tuple[dict[str, np.ndarray], dict[str, Tensor], tuple[Tensor, Tensor]]:
    """Allocate one memory on the host, pinned where there is a GPU, and one on the device, with views of both by name.

    Views begin at multiples of 16 bytes, which Triton takes for granted of a graph's arguments.
    """
    align = 16 // dtype.itemsize
    starts, total = {}, 0
    for name, length in lengths.items():
        starts[name] = total
        total += -(-length // align) * align
    host = torch.zeros(total, dtype=dtype, pin_memory=device.type == "cuda")
    on_device = torch.zeros(total, dtype=dtype, device=device)
    views = {name: host.numpy()[start : start + lengths[name]] for name, start in starts.items()}
    device_views = {name: on_device[start : start + lengths[name]] for name, start in starts.items()}
    return views, device_views, (host, on_device)
