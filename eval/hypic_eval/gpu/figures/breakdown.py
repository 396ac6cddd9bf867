"""Where a warm pass's time goes: by kernel, with the launches counted and the gaps between."""

from hypic_eval.gpu.bench import WARM_UPS, Bench
from hypic_eval.gpu.figures.ttft import workload
from hypic_eval.gpu.page import NAME, TOP
from hypic_eval.gpu.trace import traced
from hypic_eval.results import ResultRow


def measure(bench: Bench) -> list[ResultRow]:
    n = min(bench.sizes.segments)
    bench.ingest(n)
    for i in range(WARM_UPS):
        bench.warm(bench.prompt(n, i))
    prompt = bench.prompt(n, WARM_UPS)
    trace = traced(lambda: bench.warm(prompt), bench.device)
    kernels = trace.by_name()
    bench.samples["kernels"] = [{"kernel": name, "n": count, "ms": round(ms, 4)} for name, count, ms in kernels]
    bench.say("a warm pass by kernel:")
    for name, count, ms in kernels[:TOP]:
        bench.say(f"{ms:8.3f} ms {count:5d}x {name[:NAME]}")
    launches = ", ".join(f"{count} {name}" for name, count in trace.launches.items()) or "none"
    how = "one warm pass under torch.profiler, which slows the host: gaps are upper bounds"
    data = workload(bench, n)
    span, busy = trace.span_ms(), trace.busy_ms()
    return [
        bench.row("warm", "device span", "ms", span, f"first event's start to last one's end; {how}", data=data),
        bench.row("warm", "device busy", "ms", busy, f"at least one kernel or copy runs; {how}", data=data),
        bench.row("warm", "gaps", "ms", span - busy, how, data=data),
        bench.row("warm", "copies", "ms", trace.copy_ms, f"memory copies and fills; {how}", data=data),
        bench.row("warm", "kernels", "launches", len(trace.kernels), how, data=data),
        bench.row(
            "warm", "launches", "launches", trace.n_launches, f"calls of the host ({launches}); {how}", data=data
        ),
    ]
