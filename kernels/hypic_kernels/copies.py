"""Copies by address, any number in one launch, from memory that the GPU reaches: its own, and the host's pinned."""

import triton
import triton.language as tl
from torch import Tensor

from hypic_kernels.copies_reference import ALIGN, TILE

N_PROGRAMS = 32  # few, so that the other multiprocessors compute meanwhile
BLOCK = 1 << 14  # bytes that a program has under way: of all 512 KiB, where PCIe 5 needs 110 (55 GB/s, 2 us)
WORD = 4


def copy(
    items: Tensor, first: int, last: int, n_programs: int = N_PROGRAMS, block: int = BLOCK, num_warps: int = 8
) -> None:
    """Copy items ``first`` to ``last - 1``, bit for bit, on the current stream.

    items: (3, n) int64 on the device, contiguous: address to read, address to write, bytes. Addresses and bytes are
    multiples of ALIGN, bytes at most TILE, and what is written is not named twice. A host's address is that of pinned
    memory, which is read over the bus in place; it must stay until the stream has passed.

    n_programs, block: how many programs take blocks of how many bytes in turn; block divides TILE.
    Oracle: copies_reference.copy (test_copies.py).
    """
    assert TILE % block == 0 and items.is_contiguous()
    if last > first:
        _copy[(n_programs,)](
            items, items.shape[1], first, last, TILE // block, block // WORD, ALIGN, WORD, num_warps=num_warps
        )


@triton.jit(do_not_specialize=["n_items", "first", "last"])  # or the first pass of another length compiles again
def _copy(
    items,
    n_items,
    first,
    last,
    N_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGN: tl.constexpr,
    WORD: tl.constexpr,
):
    """Deal blocks to programs, not items: all end at about the same time, and items may be few and long."""
    lane = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), (last - first) * N_BLOCKS, tl.num_programs(0)):
        item = items + first + block // N_BLOCKS
        # Triton sees from the hints, and from the last product, that each thread may move 16 bytes at once.
        source = tl.multiple_of(tl.load(item).to(tl.pointer_type(tl.int32)), ALIGN)
        to = tl.multiple_of(tl.load(item + n_items).to(tl.pointer_type(tl.int32)), ALIGN)
        n_words = (tl.load(item + 2 * n_items) // ALIGN).to(tl.int32) * (ALIGN // WORD)
        word = (block % N_BLOCKS) * BLOCK + lane
        here = word < n_words
        tl.store(to + word, tl.load(source + word, mask=here, eviction_policy="evict_first"), mask=here)
