"""Time to the first token, warm against full recompute, and what each further segment costs."""

from collections.abc import Iterator

import numpy as np

from hypic_eval.gpu.bench import WARM_UPS, Bench
from hypic_eval.gpu.roofline import floor_ms
from hypic_eval.results import ResultRow

RATIO_GOAL = {16: 10.0, 32: 25.0}
TIME_GOAL = {16: 34.0}
FULL_AT_MOST = {16: 500.0, 32: 1350.0}
"""ms; SGLang's eager forward takes 475 and 1,310. A slower baseline would flatter the ratio."""
SLOPE_GOAL = 0.8
SLOPE_STEPS = 4
HOW_WARM = "host ids to host id, outer clock around engine.generate; 3 warm-ups; new question and order every time"
HOW_FULL = "host ids to host id; the plain Hugging Face model over the same weights; takes turns with warm"


def measure(bench: Bench) -> Iterator[ResultRow]:
    bench.ingest(bench.most_segments)
    for n in bench.sizes.segments:
        yield from at(bench, n)
    if len(bench.sizes.segments) > 1:
        yield slope(bench)


def at(bench: Bench, n: int) -> list[ResultRow]:
    """Measure both ways with n segments, taking turns, and their ratio."""
    data = workload(bench, n)
    longest = bench.prompt(n, 0)
    tried = bench.plain.choose(longest.token_ids, bench.say)
    bench.samples[f"ways of full recompute, {data}, ms"] = tried
    floor = floor_ms(bench, longest)
    for i in range(WARM_UPS):
        bench.say(f"warm-up {i + 1}: {bench.warm(bench.prompt(n, i)):.1f} ms")
    warm, full = [], []
    for i in range(bench.sizes.repetitions):
        prompt = bench.prompt(n, WARM_UPS + i)
        warm.append(bench.warm(prompt))
        full.append(bench.full(prompt))
    bench.samples[f"ttft, {data}, ms"] = {"warm": warm, "full": full}
    ratio = [b / a for a, b in zip(warm, full, strict=True)]
    void = why_void(bench, n, float(np.median(full)))
    how_full = f"{HOW_FULL}; {bench.plain.way}; recurrence by {bench.plain.recurrence}"
    return [
        bench.row("warm", "time to first token", "ms", warm, HOW_WARM, data=data, goal=TIME_GOAL.get(n), floor=floor),
        bench.row("full", "time to first token", "ms", full, how_full, data=data, goal=FULL_AT_MOST.get(n)),
        bench.row(
            "warm",
            "times faster than full",
            "x",
            ratio,
            "ratios of pairs of the two above",
            data=data,
            arrow="↑",
            goal=RATIO_GOAL.get(n),
            void=void,
        ),
    ]


def why_void(bench: Bench, n: int, full_ms: float) -> str:
    """Say why the ratio does not count, or nothing."""
    if not bench.counts:
        return ""
    if not bench.plain.uses_fla:
        return "full recompute ran without flash-linear-attention"
    limit = FULL_AT_MOST.get(n)
    if limit is not None and full_ms > limit:
        return f"full recompute took {full_ms:.0f} ms, and more than {limit:.0f} does not count"
    return ""


def slope(bench: Bench) -> ResultRow:
    """Measure the slope of the warm time over the number of segments, between the fewest and the most."""
    few, most = min(bench.sizes.segments), bench.most_segments
    counts = sorted({int(n) for n in np.linspace(few, most, SLOPE_STEPS + 1)})
    medians = []
    for n in counts:
        for i in range(WARM_UPS):
            bench.warm(bench.prompt(n, i))
        times = [bench.warm(bench.prompt(n, WARM_UPS + i)) for i in range(bench.sizes.repetitions)]
        medians.append(float(np.median(times)))
        bench.say(f"{n} segments: warm {medians[-1]:.2f} ms")
    bench.samples["warm by segments, ms"] = dict(zip(map(str, counts), medians, strict=True))
    each = float(np.polyfit(counts, medians, 1)[0])
    floor = 1e3 * bench.stored_bytes(bench.segments(1)[0]) / bench.device_bandwidth()
    how = f"least squares over medians of {bench.sizes.repetitions} at {', '.join(map(str, counts))} segments"
    data = f"{few} to {most} segments of {bench.sizes.tokens:,}"
    return bench.row("warm", "each further segment", "ms", each, how, data=data, goal=SLOPE_GOAL, floor=floor)


def workload(bench: Bench, n: int) -> str:
    return f"{n} segment{'s' * (n > 1)} of {bench.sizes.tokens:,}, question of {bench.sizes.question}"
