"""What is seen of a server from beside it: how soon /health answers, how much memory the process has."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

HEALTH_EVERY, MEMORY_EVERY = 0.2, 1.0  # seconds
SETTLED = 0.2  # of the time, after which memory should not grow any more
ENDS = 0.05  # of the time, whose median stands for its beginning or end


@dataclass
class HealthLog:
    """health_ms: of each look; what failed is in failures. memory: (seconds since the start, resident bytes)."""

    health_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


@contextlib.contextmanager
def watched(url: str, pid: int | None) -> Iterator[HealthLog]:
    """Watch, in threads of their own, until the block ends. pid: None where the process is not on this machine."""
    seen, ended, began = HealthLog(), threading.Event(), time.monotonic()

    def health() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not ended.wait(HEALTH_EVERY):
                sent = time.monotonic()
                try:
                    client.get("/health").raise_for_status()
                except httpx.HTTPError as error:
                    seen.failures.append(repr(error))
                else:
                    seen.health_ms.append(1e3 * (time.monotonic() - sent))

    def memory(pid: int) -> None:
        while not ended.wait(MEMORY_EVERY):
            if (found := resident_bytes(pid)) is not None:
                seen.memory.append((time.monotonic() - began, found))

    threads = [threading.Thread(target=health)]
    threads += [] if pid is None else [threading.Thread(target=memory, args=(pid,))]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def resident_bytes(pid: int) -> int | None:
    """Read VmRSS of Linux's /proc; None where that is not there, or the process is not."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024 * int(line.split()[1])
    return None


def settled_and_end(memory: Sequence[tuple[float, int]], seconds: float) -> tuple[float, float] | None:
    """Return the resident bytes a fifth of the time after the start and at its end, each the median of a twentieth of
    the time; None where there are no samples. memory: as in ``HealthLog``."""
    at = [
        [nbytes for when, nbytes in memory if start * seconds <= when <= (start + ENDS) * seconds]
        for start in (SETTLED, 1 - ENDS)
    ]
    return (median(at[0]), median(at[1])) if all(at) else None
