"""Decoding, for one request and for many, over spliced segments and over keys in one piece."""

from collections.abc import Sequence

from hypic_eval.gpu.bench import Bench
from hypic_eval.gpu.clock import elapsed_ms
from hypic_eval.gpu.figures.ttft import workload
from hypic_eval.results import ResultRow
from hypic_eval.ttft import WrongPath
from hypic_rag.engine import Policy, Sampling
from hypic_rag.prompt import Prompt

GOAL = 0.95
SETTLE = 3
"""Steps with all requests under way before the first that is timed."""


def measure(bench: Bench) -> list[ResultRow]:
    n = min(bench.sizes.segments)
    bench.ingest(n)
    rows = []
    for n_requests in sorted({1, bench.sizes.requests}):
        prompts = [bench.prompt(n, i) for i in range(n_requests)]
        data = f"{n_requests} request{'s' * (n_requests > 1)}, {workload(bench, n)}"
        spliced = step_times(bench, prompts, Policy())
        rows.append(bench.row("spliced", "a token", "ms", spliced, "engine.step with all requests decoding", data=data))
        try:
            whole = step_times(bench, prompts, Policy("full"))
        except WrongPath as error:
            bench.notes.append(f"No contiguous decoding of {data}: {error}.")
            continue
        rows.append(
            bench.row("contiguous", "a token", "ms", whole, "the same in full mode: keys in one piece", data=data)
        )
        ratio = rows[-1].value / rows[-2].value
        how = "medians of the two above"
        rows.append(bench.row("spliced", "speed of contiguous", "x", ratio, how, data=data, arrow="↑", goal=GOAL))
    return rows


def step_times(bench: Bench, prompts: Sequence[Prompt], policy: Policy) -> list[float]:
    """ms of each step once every prompt has its first token; they come one a step, so that prefills do not pile up.

    Raises WrongPath where they do not all fit.
    """
    engine = bench.engine
    sampling = Sampling(max_new_tokens=len(prompts) + SETTLE + bench.sizes.decoded + 1)
    ids = []
    try:
        for prompt in prompts:
            ids.append(engine.add_request(prompt, sampling, policy))
            running = len(engine.step())
            if running < len(ids):
                raise WrongPath(f"{len(ids)} requests should be under way, and the device has room for {running}")
        for _ in range(SETTLE):
            engine.step()
        times = [elapsed_ms(engine.step, bench.device) for _ in range(bench.sizes.decoded)]
    finally:
        for request in ids:
            engine.cancel(request)
    bench.say(f"{len(prompts)} requests, {policy.mode}: {sorted(times)[len(times) // 2]:.2f} ms a step")
    return times
