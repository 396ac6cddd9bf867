"""What (T, S) and the copies to the host add to an isolated prefill."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from hypic_eval.gpu.bench import Bench
from hypic_eval.gpu.clock import elapsed_ms
from hypic_eval.gpu.figures.breakdown import tell
from hypic_eval.gpu.plain import Way
from hypic_eval.gpu.trace import Trace, lines, traced
from hypic_eval.results import ResultRow
from hypic_rag.prompt import Ids

GOAL = 5.0
TURNS = 3
TOP = 25
"""Kernels that are saved and told of each way."""
HOW = "kernels' device time by torch.profiler, copies apart"


def measure(bench: Bench) -> Iterator[ResultRow]:
    n = min(bench.sizes.segments)
    segments = bench.segments(n)
    bench.plain.way = _way(bench)
    bench.say(f"prefill of {n} segments with (T, S), and the plain forward of the same ({bench.plain.way})")

    def ours() -> None:
        bench.engine.prefill(segments)

    bench.forget(segments)
    with passes_of(bench) as passes:
        ours()  # sets up kernels
    same_passes = split(segments, passes)
    plain = {"in the same passes": same_passes}
    if len(same_passes) > 1:
        plain["in one pass"] = [segments]
    for groups in plain.values():
        _plain(bench, groups)
    wall: list[float] = []
    with_T: list[Trace] = []
    without: dict[str, list[Trace]] = {way: [] for way in plain}
    for _ in range(TURNS):
        bench.forget(segments)
        wall.append(elapsed_ms(ours, bench.device))
        bench.forget(segments)
        with_T.append(traced(ours, bench.device))
        for way, groups in plain.items():
            without[way].append(traced(partial(_plain, bench, groups), bench.device))
        told = ", ".join(f"{traces[-1].kernel_ms:.1f} ms without, {way}" for way, traces in without.items())
        bench.say(f"device: {with_T[-1].kernel_ms:.1f} ms with, {told}; wall {wall[-1]:.0f} ms")
    last = {"with (T, S)": with_T[-1]} | {f"without, {way}": traces[-1] for way, traces in without.items()}
    bench.samples["kernels of prefill"] = {name: lines(trace, TOP) for name, trace in last.items()}
    for name, trace in last.items():
        tell(bench, f"prefill {name}", trace, TOP)

    data = f"{n} segments of {bench.sizes.tokens:,}"
    n_passes = f"{len(passes)} pass{'es' * (len(passes) > 1)}"
    ms = [trace.kernel_ms for trace in with_T]
    yield bench.row("prefill", "device time with (T, S)", "ms", ms, f"engine.prefill in {n_passes}; {HOW}", data=data)
    for way, traces in without.items():
        how = f"the plain forward, {len(plain[way])} of its passes, {bench.plain.way}; {HOW}"
        plain_ms = [trace.kernel_ms for trace in traces]
        yield bench.row("prefill", f"device time without, {way}", "ms", plain_ms, how, data=data)
        cost = [100 * (a / b - 1) for a, b in zip(ms, plain_ms, strict=True)]
        goal = GOAL if way == "in the same passes" else None
        yield bench.row("prefill", f"cost of (T, S), {way}", "%", cost, "pairs of the above", data=data, goal=goal)
    how = "device time of memory copies, and of kernels that only copy, in engine.prefill"
    yield bench.row("prefill", "copies", "ms", [trace.copy_ms for trace in with_T], how, data=data)
    yield bench.row("prefill", "wall", "ms", wall, "engine.prefill with storing, outer clock, no profiler", data=data)


@contextmanager
def passes_of(bench: Bench) -> Iterator[list[int]]:
    """Collect the rows of every forward pass of the engine's model, as they come."""
    rows: list[int] = []

    def note(module: Any, args: Any, given: dict[str, Any]) -> None:
        rows.append(given["input_ids"].numel())

    hook = bench.engine.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        hook.remove()


def split(segments: Sequence[Ids], passes: Sequence[int]) -> list[Sequence[Ids]]:
    """Split the segments, of one length, as these passes took them; all in one where that cannot be said."""
    counts = [rows // len(segments[0]) for rows in passes]
    if 0 in counts or sum(counts) != len(segments):
        return [segments]
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [segments[end - n : end] for n, end in zip(counts, ends, strict=True)]


def _plain(bench: Bench, groups: Sequence[Sequence[Ids]]) -> None:
    for group in groups:
        bench.plain.prefill(group)


def _way(bench: Bench) -> Way:
    """Choose the faster of torch's and fla's convolution and norms; a batch of short segments needs no chunks."""
    bench.plain.choose(bench.prompt(min(bench.sizes.segments), 0).token_ids, bench.say)
    return Way(bench.plain.way.fused, bench.plain.way.cudnn)
