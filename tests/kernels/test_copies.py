"""Copies by address move exactly the bytes that are named, whatever their type."""

import os
from typing import Any

import pytest
import torch
from hypic_kernels import copies_reference as reference

kernel: Any = pytest.importorskip("hypic_kernels.copies", reason="Triton is not installed")

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="on a CPU kernels need TRITON_INTERPRET=1"
)

TILE, ALIGN = reference.TILE, reference.ALIGN
SIZES = {
    "one vector": [ALIGN],
    "a tile": [TILE],
    "less than a tile": [TILE - ALIGN],
    "around a block": [kernel.BLOCK - ALIGN, kernel.BLOCK, kernel.BLOCK + ALIGN],
    "fewer than programs": [48, TILE, 16],
    "many, and more than programs": [16 * n for n in range(1, 40)] + [TILE, 32],
}
FROM_HOST = [False, True] if DEVICE == "cuda" else [False]


def bytes_of(n: int, seed: int) -> torch.Tensor:
    """Every bit pattern, those of NaN too."""
    return torch.randint(0, 256, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("from_host", FROM_HOST, ids=lambda pinned: "pinned" if pinned else "device")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_named_bytes_are_moved_and_no_others(sizes: list[int], from_host: bool) -> None:
    """Sources lie one behind the other, destinations in reverse with a gap of ALIGN between them."""
    made = bytes_of(sum(sizes), 1)
    source = made.pin_memory() if from_host else made.to(DEVICE)
    n_gapped = sum(sizes) + ALIGN * (len(sizes) + 1)
    items, moves, at, end = [], [], 0, n_gapped
    for n in sizes:
        end -= n + ALIGN
        moves.append((at, end, n))
        at += n
    before = bytes_of(n_gapped, 2)
    expected = before.clone()
    for start, to, n in moves:
        expected[to : to + n] = made[start : start + n]
    for copy in [kernel.copy, *([reference.copy] if DEVICE == "cpu" else [])]:
        target = before.to(DEVICE, copy=True)
        items = torch.tensor(
            [[source.data_ptr() + start, target.data_ptr() + to, n] for start, to, n in moves], device=DEVICE
        ).T.contiguous()
        copy(items, 0, len(sizes))
        assert torch.equal(target.cpu(), expected)


def test_only_the_items_asked_for() -> None:
    source = bytes_of(64, 1).to(DEVICE)
    target = torch.zeros_like(source)
    items = torch.tensor(
        [[source.data_ptr() + at, target.data_ptr() + at, 16] for at in range(0, 64, 16)], device=DEVICE
    ).T.contiguous()
    kernel.copy(items, 1, 1)
    assert not target.any()
    kernel.copy(items, 1, 3)
    assert torch.equal(target[16:48], source[16:48]) and not target[:16].any() and not target[48:].any()


@pytest.mark.parametrize("n_programs, block", [(1, 1 << 13), (3, 1 << 14), (64, 1 << 16)])
def test_however_it_is_dealt(n_programs: int, block: int) -> None:
    source = bytes_of(2 * TILE + 4096, 3).to(DEVICE)
    target = torch.zeros_like(source)
    starts = [(0, TILE), (TILE, TILE), (2 * TILE, 4096)]
    items = torch.tensor(
        [[source.data_ptr() + at, target.data_ptr() + at, n] for at, n in starts], device=DEVICE
    ).T.contiguous()
    kernel.copy(items, 0, 3, n_programs=n_programs, block=block)
    assert torch.equal(target, source)
