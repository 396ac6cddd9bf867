"""Where the time of a warm pass and of a decode step goes: by kernel, with launches counted and the gaps between."""

from collections.abc import Iterator

from hypic_eval.gpu.bench import WARM_UPS, Bench
from hypic_eval.gpu.figures import decode
from hypic_eval.gpu.figures.ttft import workload
from hypic_eval.gpu.page import NAME, TOP
from hypic_eval.gpu.trace import Trace, lines, traced
from hypic_eval.results import ResultRow
from hypic_rag.engine import Policy


def measure(bench: Bench) -> Iterator[ResultRow]:
    n = min(bench.sizes.segments)
    bench.ingest(n)
    for i in range(WARM_UPS):
        bench.warm(bench.prompt(n, i))
    prompt = bench.prompt(n, WARM_UPS)
    trace = traced(lambda: bench.warm(prompt), bench.device)
    bench.samples["kernels"] = lines(trace)
    tell(bench, "a warm pass", trace)
    yield from rows(bench, "warm", "one warm pass", workload(bench, n), trace)
    for n_requests in bench.few_and_many:
        prompts, data = decode.workload(bench, n_requests)
        with decode.under_way(bench, prompts, Policy()):
            trace = traced(bench.engine.step, bench.device)
        bench.samples[f"kernels of a step: {data}"] = lines(trace)
        tell(bench, f"a step of {data}", trace)
        yield from rows(bench, "spliced", "one step of engine.step", data, trace)


def tell(bench: Bench, what: str, trace: Trace, top: int = TOP) -> None:
    """Report the longest kernels as lines of progress."""
    bench.say(f"{what} by kernel, {trace.kernel_ms:.3f} ms of kernels and {trace.copy_ms:.3f} ms of copies:")
    for name, count, ms in trace.by_name()[:top]:
        bench.say(f"{ms:8.3f} ms {count:5d}x {name[:NAME]}")


def rows(bench: Bench, mode: str, what: str, data: str, trace: Trace) -> list[ResultRow]:
    launches = ", ".join(f"{count} {name}" for name, count in trace.launches.items()) or "none"
    how = f"{what} under torch.profiler, which slows the host: gaps are upper bounds"
    span, busy = trace.span_ms(), trace.busy_ms()
    return [
        bench.row(mode, "device span", "ms", span, f"first event's start to last one's end; {how}", data=data),
        bench.row(mode, "device busy", "ms", busy, f"at least one kernel or copy runs; {how}", data=data),
        bench.row(mode, "gaps", "ms", span - busy, how, data=data),
        bench.row(mode, "copies", "ms", trace.copy_ms, f"memory copies and fills; {how}", data=data),
        bench.row(mode, "kernels", "launches", len(trace.kernels), how, data=data),
        bench.row(mode, "launches", "launches", trace.n_launches, f"calls of the host ({launches}); {how}", data=data),
    ]
