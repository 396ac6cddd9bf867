"""Clocks: progress with the seconds gone, medians on the host, and the bandwidths that floors are made of."""

import sys
from collections.abc import Callable
from time import perf_counter

import torch

N_COPIES = 10
COPY_BYTES = {"cuda": 2 << 30, "cpu": 16 << 20}


class ProgressLines:
    """Lines on stderr with the seconds since the start, so that a run cut off tells how far it came."""

    def __init__(self) -> None:
        self.began = perf_counter()

    def __call__(self, text: str) -> None:
        print(f"[{perf_counter() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed_ms(run: Callable[[], object], device: torch.device) -> float:
    """Time a call on the host, in ms, from before it until the device has done all of it."""
    synchronize(device)
    began = perf_counter()
    run()
    synchronize(device)
    return 1e3 * (perf_counter() - began)


def device_bandwidth(device: torch.device) -> float:
    """Measure bytes a second, read and written counted, of copies within the device's memory."""
    source = torch.empty(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    return 2 * _copy_rate(source, torch.empty_like(source), device)


def host_to_device_bandwidth(device: torch.device) -> float:
    """Measure bytes a second of copies from pinned memory."""
    on_gpu = device.type == "cuda"
    source = torch.empty(COPY_BYTES[device.type] // 2, dtype=torch.uint8, pin_memory=on_gpu)
    return _copy_rate(source, torch.empty_like(source, device=device), device)


def _copy_rate(source: torch.Tensor, target: torch.Tensor, device: torch.device) -> float:
    def copy() -> None:
        for _ in range(N_COPIES):
            target.copy_(source, non_blocking=True)

    copy()
    return N_COPIES * source.nbytes / (1e-3 * elapsed_ms(copy, device))
