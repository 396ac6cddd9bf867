"""What (T, S) and the copies to the host add to an isolated prefill."""

from hypic_eval.gpu.bench import Bench
from hypic_eval.gpu.clock import elapsed_ms
from hypic_eval.gpu.figures.ttft import workload
from hypic_eval.gpu.plain import Way
from hypic_eval.gpu.trace import Trace, traced
from hypic_eval.results import ResultRow

GOAL = 5.0
TURNS = 3
HOW = "kernels' device time by torch.profiler, memory copies apart"


def measure(bench: Bench) -> list[ResultRow]:
    n = min(bench.sizes.segments)
    segments = bench.segments(n)

    def ours() -> None:
        bench.forget(segments)
        bench.engine.prefill(segments)

    bench.plain.way = _way(bench)
    bench.say(f"prefill of {n} segments with (T, S), and the plain forward of the same ({bench.plain.way})")
    with_T: list[Trace] = []
    without: list[Trace] = []
    wall: list[float] = []
    for i in range(TURNS + 1):
        started = elapsed_ms(ours, bench.device)
        pair = traced(ours, bench.device), traced(lambda: bench.plain.prefill(segments), bench.device)
        bench.say(f"device: {pair[0].kernel_ms:.1f} ms with, {pair[1].kernel_ms:.1f} ms without; wall {started:.0f} ms")
        if i:  # the first sets up kernels
            wall.append(started)
            with_T.append(pair[0])
            without.append(pair[1])
    overhead = [100 * (a.kernel_ms / b.kernel_ms - 1) for a, b in zip(with_T, without, strict=True)]
    data = workload(bench, n).partition(",")[0] if n == 1 else f"{n} segments of {bench.sizes.tokens:,}"
    plain = f"the plain forward, one batch of {n} segments, {bench.plain.way}; {HOW}"
    return [
        bench.row(
            "prefill",
            "device time with (T, S)",
            "ms",
            [t.kernel_ms for t in with_T],
            f"engine.prefill; {HOW}",
            data=data,
        ),
        bench.row("prefill", "device time without", "ms", [t.kernel_ms for t in without], plain, data=data),
        bench.row("prefill", "cost of (T, S)", "%", overhead, "pairs of the two above", data=data, goal=GOAL),
        bench.row(
            "prefill",
            "copies",
            "ms",
            [t.copy_ms for t in with_T],
            "device time of memory copies in engine.prefill",
            data=data,
        ),
        bench.row(
            "prefill", "wall", "ms", wall, "engine.prefill with storing entries, outer clock, no profiler", data=data
        ),
    ]


def _way(bench: Bench) -> Way:
    """The faster of torch's and fla's convolution and norms; a batch of short segments needs no chunks."""
    bench.plain.choose(bench.prompt(min(bench.sizes.segments), 0).token_ids, bench.say)
    return Way(bench.plain.way.fused, bench.plain.way.cudnn)
