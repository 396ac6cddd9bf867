"""Warm with the entries in the host's memory, from where each request has to fetch them."""

from hypic_eval.gpu.bench import WARM_UPS, Bench
from hypic_eval.gpu.figures.ttft import workload
from hypic_eval.results import ResultRow

TIMES_DEVICE, TIMES_COPY = 1.5, 1.15
"""The goal is the larger of 1.5 x device-warm and 1.15 x what the copy alone takes."""


def measure(bench: Bench) -> list[ResultRow]:
    n = min(bench.sizes.segments)
    bench.ingest(n)
    n_bytes = sum(bench.stored_bytes(ids) for ids in bench.segments(n))
    copy_ms = 1e3 * n_bytes / bench.host_bandwidth()
    on_device, on_host = [], []
    for i in range(WARM_UPS + bench.sizes.repetitions):
        prompt = bench.prompt(n, i)
        device_ms = bench.warm(prompt, bench.nearest_tier if i else None)  # the first one fetches them
        has_tier = bench.forget_device()
        host_ms = bench.warm(prompt, "host")
        if i >= WARM_UPS:
            on_device.append(device_ms)
            on_host.append(host_ms)
    bench.samples["warm from the host, ms"] = on_host
    data = workload(bench, n)
    how = "as warm, the device's copies of entries dropped before every request"
    if not has_tier:
        how = "as warm; this engine keeps no entries on the device, so both are this"
    device = bench.row("warm", "entries on the device", "ms", on_device, "as warm, paired with the next", data=data)
    goal = max(TIMES_DEVICE * device.value, TIMES_COPY * copy_ms)
    return [
        device,
        bench.row("warm", "entries in host memory", "ms", on_host, how, data=data, goal=round(goal, 1), floor=copy_ms),
    ]
