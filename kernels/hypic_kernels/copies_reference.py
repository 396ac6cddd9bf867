"""Copies by address, one after the other, in the memory of this process."""

import ctypes

from torch import Tensor

ALIGN = 16
"""Bytes that addresses and sizes are multiples of: what one thread moves at a time."""
TILE = 1 << 16
"""Bytes of an item, at most."""


def copy(items: Tensor, first: int, last: int) -> None:
    """See ``copies.copy``; items and all that they name are on the CPU."""
    for source, to, nbytes in items[:, first:last].T.tolist():
        ctypes.memmove(to, source, nbytes)
