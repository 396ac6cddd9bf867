"""What the processes of test_processes.py do."""

import os
import signal
from pathlib import Path

from cache_samples import same_bits, sample_entry, sample_key

from hypic_rag.cache import Hit, SegmentCache


def open_and_write(folder, rank, barrier, results):
    """One of several processes that open a new folder at one moment and write shared keys and their own."""
    try:
        barrier.wait(30)
        with SegmentCache.open(folder, host_budget=0) as cache:
            for n in [0, 1, 2, 10 + rank, 20 + rank]:
                cache.put(sample_key(n), sample_entry(n if n > 2 else 100 * rank + n))
                assert isinstance(cache.lookup(sample_key(n)), Hit), n
        results.put((rank, "done"))
    except BaseException as error:
        results.put((rank, repr(error)))
        raise


def write_until_killed(folder, budget, first, dies_at):
    """Writes entries, and kills itself just before the ``dies_at``-th call that changes the disk."""
    countdown = iter(range(dies_at, 0, -1))

    def deadly(call):
        def wrapped(*arguments, **options):
            if next(countdown, 0) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    if dies_at:
        for owner, name in [(os, "fsync"), (os, "replace"), (Path, "unlink")]:
            setattr(owner, name, deadly(getattr(owner, name)))
    with SegmentCache.open(folder, host_budget=0, disk_budget=budget) as cache:
        n = first
        while True:
            cache.put(sample_key(n), sample_entry(n))
            n += 1


def read_without_permission(folder, results):
    """Uses a folder that this process may not write; root gives up its rights first."""
    try:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with SegmentCache.open(folder, host_budget=0) as cache:
            results.put(
                {
                    "lookup": isinstance(cache.lookup(sample_key()), Hit),
                    "put": same_bits(cache.put(sample_key(1), sample_entry(1)), sample_entry(1)),
                    "stored": cache.contains(sample_key(1)),
                    "discarded": cache.discard([sample_key().digest]),
                    "problems": cache.verify() + cache.gc(),
                }
            )
    except BaseException as error:
        results.put(repr(error))
        raise
