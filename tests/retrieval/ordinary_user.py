"""Takes from root what lets it pass permissions, so that tests of them run as they do for everybody else."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

VERSION_3 = 0x20080522  # of linux/capability.h: two 32-bit words a set
PASSES_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """For this thread, as long as it lasts."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; of the low word first
    assert libc.capget(header, sets) == 0
    had = sets[0]
    sets[0] &= ~PASSES_PERMISSIONS
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = had
        assert libc.capset(header, sets) == 0
