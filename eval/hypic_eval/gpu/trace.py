"""What the device did during a call, kernel by kernel, from torch's profiler."""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hypic_eval.gpu.clock import synchronize

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch")
OUR_COPIES = re.compile(r"\w*cop(y|ies)\w*")
"""Whole names of Triton kernels that only copy. torch's own that have ``copy`` in them are templates ("void at::..."):
they turn and convert what a layer computes, and count as kernels."""


@dataclass(frozen=True)
class Event:
    """Something the device did; times in microseconds."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class Trace:
    """kernels; copies and fills of memory, also by kernels that do nothing else; ``launches``: calls of the host that
    start kernels, a graph's being one."""

    kernels: tuple[Event, ...]
    copies: tuple[Event, ...]
    launches: Mapping[str, int]

    @property
    def kernel_ms(self) -> float:
        return 1e-3 * sum(event.duration for event in self.kernels)

    @property
    def copy_ms(self) -> float:
        return 1e-3 * sum(event.duration for event in self.copies)

    @property
    def n_launches(self) -> int:
        return sum(self.launches.values())

    def span_ms(self) -> float:
        """Return the time from the first event's start to the last one's end."""
        events = (*self.kernels, *self.copies)
        if not events:
            return 0.0
        return 1e-3 * (max(event.start + event.duration for event in events) - min(event.start for event in events))

    def busy_ms(self) -> float:
        """Return how long at least one event ran; the rest of the span is gaps."""
        busy = end = 0.0
        for event in sorted((*self.kernels, *self.copies), key=lambda event: event.start):
            stop = event.start + event.duration
            busy += max(0.0, stop - max(end, event.start))
            end = max(end, stop)
        return 1e-3 * busy

    def by_name(self) -> list[tuple[str, int, float]]:
        """List (name, how many, ms in all), the longest first; copies among them."""
        totals: dict[str, tuple[int, float]] = {}
        for event in (*self.kernels, *self.copies):
            n, ms = totals.get(event.name, (0, 0.0))
            totals[event.name] = (n + 1, ms + 1e-3 * event.duration)
        return sorted(((name, n, ms) for name, (n, ms) in totals.items()), key=lambda row: -row[2])


def lines(trace: Trace, top: int | None = None) -> list[dict[str, Any]]:
    """Return ``by_name`` to be saved, the longest ``top`` of them."""
    return [{"kernel": name, "n": n, "ms": round(ms, 4)} for name, n, ms in trace.by_name()[:top]]


def traced(run: Callable[[], object], device: torch.device) -> Trace:
    """Run one call under the profiler. On a CPU, which has no kernels, torch's operators stand for them."""
    on_gpu = device.type == "cuda"
    # The CPU's own activity is left out on a GPU: recording every operator would stretch the gaps it is to show.
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    synchronize(device)
    with profile(activities=[activity]) as profiler:
        run()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return read(events, ("kernel",) if on_gpu else ("cpu_op",))


def read(events: Iterable[Mapping[str, Any]], kinds: Sequence[str]) -> Trace:
    """Read a Chrome trace's events; ``kinds``: the categories that count as kernels."""
    kernels: list[Event] = []
    copies: list[Event] = []
    launches = dict.fromkeys(LAUNCHES, 0)
    for event in events:
        kind = event.get("cat")
        if kind in kinds or kind in ("gpu_memcpy", "gpu_memset"):
            found = Event(event["name"], float(event["ts"]), float(event["dur"]))
            is_copy = kind not in kinds or OUR_COPIES.fullmatch(found.name)
            (copies if is_copy else kernels).append(found)
        elif kind in ("cuda_runtime", "cuda_driver"):
            for name in LAUNCHES:
                launches[name] += event["name"].startswith(name)
    return Trace(tuple(kernels), tuple(copies), {name: n for name, n in launches.items() if n})
