"""Many requests at once, half of each one's segments common to all: requests a second, and how long the last wait."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from hypic_eval.gpu.bench import ONE_TOKEN, WARM_UPS, Bench
from hypic_eval.results import ResultRow
from hypic_rag.prompt import Ids, Prompt

GOAL = 3.0


def measure(bench: Bench) -> Iterator[ResultRow]:
    n, n_requests = min(bench.sizes.segments), bench.sizes.requests
    bench.say(f"load: {n_requests} prompts of {n} segments")
    prompts = mixed_prompts(bench, n, n_requests)
    segments = {ids for prompt in prompts for ids in prompt.documents}
    bench.ingest(len(segments))
    for i in range(WARM_UPS):
        bench.warm(prompts[i % n_requests])
    at_once(bench, prompts)  # brings entries to the device, and sizes of passes that have not run yet are set up
    void = pool_too_small(bench, list(segments))
    warm, tiers = at_once(bench, prompts)
    bench.say(f"warm: {n_requests} requests in {max(warm):.0f} ms; {came_from(tiers)}")
    bench.plain.choose(prompts[0].token_ids, bench.say)
    full = one_by_one([partial(bench.plain, prompt.token_ids) for prompt in prompts])
    bench.say(f"full: {n_requests} requests in {max(full):.0f} ms")
    bench.samples["ttft of requests at once, ms"] = {"warm": warm, "full": full}
    data = f"{n_requests} requests at once, {n} segments of {bench.sizes.tokens:,}, half common"
    p95 = {"warm": float(np.percentile(warm, 95)), "full": float(np.percentile(full, 95))}
    rate = {"warm": 1e3 * n_requests / max(warm), "full": 1e3 * n_requests / max(full)}
    how = {
        "warm": f"all added, then engine.step until none is left; each has one token; {came_from(tiers)}",
        "full": f"one after another, as a pass is bound by arithmetic; {bench.plain.way}",
    }
    for way in ("warm", "full"):
        why = void if way == "warm" else ""
        yield bench.row(way, "rate", "requests/s", rate[way], how[way], data=data, arrow="↑", void=why)
        yield bench.row(way, "p95 of time to first token", "ms", p95[way], how[way], data=data, void=why)
    void = void or ("" if p95["warm"] <= p95["full"] else "its p95 is above full recompute's")

    def to_full(way: str, ratio: float, goal: float | None = None, void: str = "") -> ResultRow:
        how = "rates above"
        return bench.row(way, "rate relative to full", "x", ratio, how, data=data, arrow="↑", goal=goal, void=void)

    yield to_full("warm", rate["warm"] / rate["full"], GOAL, void)
    bench.forget(list(segments - set(bench.segments(n // 2))))
    missed, tiers = at_once(bench, prompts, warm=False)
    missed_rate = 1e3 * n_requests / max(missed)
    how_missed = (
        f"as warm, each one's own segments prefilled and stored first; at most 2 can be had; {came_from(tiers)}"
    )
    yield bench.row("half misses", "rate", "requests/s", missed_rate, how_missed, data=data, arrow="↑")
    yield to_full("half misses", missed_rate / rate["full"])


def pool_too_small(bench: Bench, segments: Sequence[Ids]) -> str:
    """Say why what follows is no figure of entries on the device, or nothing."""
    n_absent = bench.absent(segments)
    if not n_absent:
        return ""
    return (
        f"the device's pools are too small: {n_absent} of {len(segments)} entries are not there, "
        f"with {bench.token_slots} token slots"
    )


def came_from(tiers: Counter[str]) -> str:
    return "segments came from: " + ", ".join(f"{tier} {n}" for tier, n in sorted(tiers.items()))


def mixed_prompts(bench: Bench, n: int, n_requests: int) -> list[Prompt]:
    """Build prompts of which the first half of the segments is common, but stands elsewhere in
    each; the rest is the prompt's own."""
    common, own = n // 2, n - n // 2
    every = bench.segments(common + n_requests * own)
    prompts = []
    for i in range(n_requests):
        first = common + i * own
        documents: list[Ids] = [*every[:common], *every[first : first + own]]
        turn = 5 * i % n
        question = bench.ids(bench.sizes.question, 500_000 + i)
        prompts.append(Prompt.build((), (*documents[turn:], *documents[:turn]), question))
    return prompts


def at_once(bench: Bench, prompts: Sequence[Prompt], warm: bool = True) -> tuple[list[float], Counter[str]]:
    """Time each request, in ms, until its first token, all having come at the same moment; count how
    many segments came from where.

    warm: no segment may be missing.
    """
    engine = bench.engine
    began = perf_counter()
    waiting = {engine.add_request(prompt, ONE_TOKEN): i for i, prompt in enumerate(prompts)}
    times = [0.0] * len(prompts)
    tiers: Counter[str] = Counter()
    while engine.has_work:
        for output in engine.step():
            if output.generation:
                report = output.generation.report
                if warm:
                    bench.require_warm(prompts[waiting[output.request_id]], report)
                times[waiting[output.request_id]] = 1e3 * (perf_counter() - began)
                tiers.update(use.tier or "prefilled" for use in report.segments)
    return times, tiers


def one_by_one(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Time each, in ms, until it is done, all having come at the same moment and been taken in turn."""
    began = perf_counter()
    times = []
    for run in runs:
        run()
        times.append(1e3 * (perf_counter() - began))
    return times
