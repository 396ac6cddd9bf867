"""Memory of the host for entries, page-locked where a GPU copies from it: blocks, of which an entry takes a stretch."""

import logging
import threading
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypic_rag.cache.tiers.free_list import FreeList

log = logging.getLogger(__name__)

ALIGN = 256  # bytes: what a stretch begins and ends at
FIRST_BLOCK = 64 << 20
LARGEST_BLOCK = 1 << 30


@dataclass(frozen=True, eq=False)
class Block:
    memory: NDArray[np.uint8]
    room: FreeList


class Arena:
    """Takes blocks as they are needed, each as large as all before it together but at least FIRST_BLOCK and at most
    LARGEST_BLOCK bytes (an entry that is larger gets its own), and keeps them. Safe for threads.

    A stretch is free again when the last tensor that views it is gone, of whomever, and not before. So who queues
    copies that read one keeps a tensor of it until they have run.
    """

    def __init__(self, page_locked: bool):
        """page_locked: if it cannot be had (no GPU, or too much of it), memory is ordinary, which is warned of once."""
        self.page_locked = page_locked
        self.nbytes = 0
        """Of all blocks."""
        self._blocks: list[Block] = []
        self._lock = threading.Lock()
        # A view may die anywhere, in ``take`` too while it holds the lock: it is only noted here, which needs none.
        self._given_back: deque[tuple[Block, int, int]] = deque()

    def take(self, nbytes: int) -> Tensor:
        """Take a stretch: (nbytes,) uint8 with what lay there before. Views of it keep it taken."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            while self._given_back:
                of, first, n = self._given_back.popleft()
                of.room.give(first, n)
            block, at = self._find(nbytes)
        view = block.memory[at : at + nbytes]
        weakref.finalize(view, self._given_back.append, (block, at, nbytes)).atexit = False
        return torch.from_numpy(view)  # a storage of its own, which holds the view

    def _find(self, nbytes: int) -> tuple[Block, int]:
        for block in self._blocks:
            at = block.room.take(nbytes)
            if at is not None:
                return block, at
        size = max(_power_of_two(nbytes), min(max(self.nbytes, FIRST_BLOCK), LARGEST_BLOCK))
        block = Block(self._memory(size), FreeList(size, ALIGN))
        self._blocks.append(block)
        self.nbytes += size
        at = block.room.take(nbytes)
        assert at is not None
        return block, at

    def _memory(self, size: int) -> NDArray[np.uint8]:
        if self.page_locked:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
            except RuntimeError as error:
                self.page_locked = False
                log.warning("no %d bytes of page-locked memory, so copies to the GPU will be slow: %s", size, error)
        return np.empty(size, np.uint8)


def _power_of_two(n: int) -> int:
    """Round up to a power of two: torch takes page-locked memory in these."""
    return 1 << (n - 1).bit_length()
