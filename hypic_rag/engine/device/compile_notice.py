"""A word to whoever waits while kernels are compiled."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

SECONDS = 5.0  # no pass takes so long once its kernels are there
MESSAGE = (
    "compiling and tuning kernels for this GPU: up to two minutes, once; Triton keeps what it finds in its cache "
    "(~/.triton, or TRITON_CACHE_DIR)"
)

logger = logging.getLogger("hypic_rag")


@contextmanager
def patience() -> Iterator[None]:
    """Log a warning where the pass on a GPU that it surrounds takes more than SECONDS."""
    timer = Timer(SECONDS, logger.warning, [MESSAGE])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
