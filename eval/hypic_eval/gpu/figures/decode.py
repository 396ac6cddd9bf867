"""Decoding, for one request and for many, over spliced segments and over keys in one piece."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypic_eval.gpu.bench import Bench
from hypic_eval.gpu.clock import elapsed_ms
from hypic_eval.gpu.figures import ttft
from hypic_eval.results import ResultRow
from hypic_eval.ttft import WrongPath
from hypic_rag.engine import Policy, Sampling
from hypic_rag.errors import HypicError
from hypic_rag.prompt import Prompt

GOAL = 0.95
SETTLE = 3
"""Steps with all requests under way before the first that is timed."""
ROUNDS = 3
"""Of one request both ways in turn: a step takes few milliseconds, in which the host's mood shows."""
SHARE = 0.75
"""Of the pools' token slots, what all requests' own keys may take in full mode: a request needs its own in a row."""
MODES = {"spliced": (Policy(), "engine.step with all requests decoding"),
         "contiguous": (Policy("full"), "the same in full mode: keys in one piece")}  # fmt: skip


def measure(bench: Bench) -> Iterator[ResultRow]:
    bench.ingest(min(bench.sizes.segments))
    for n_requests in bench.few_and_many:
        prompts, data = workload(bench, n_requests)
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        mode = ""
        try:
            for _ in range(ROUNDS if n_requests == 1 else 1):
                for mode, (policy, _) in MODES.items():
                    times[mode] += step_times(bench, prompts, policy)
        except HypicError as error:
            bench.notes.append(
                f"No {mode} decoding of {data}: {error}. The pools' token slots are {bench.token_slots}."
            )
        found: dict[str, float] = {}
        for mode, (_, how) in MODES.items():
            if times[mode]:
                bench.samples[f"a token, {mode}, {data}, ms"] = times[mode]
                row = bench.row(mode, "a token", "ms", times[mode], how + why_few(bench, prompts), data=data)
                found[mode] = row.value
                yield row
        if len(found) == len(MODES):
            how = "contiguous over spliced: medians of the two above"
            ratio = found["contiguous"] / found["spliced"]
            yield bench.row("spliced", "speed of contiguous", "x", ratio, how, data=data, arrow="↑", goal=GOAL)


def workload(bench: Bench, n_requests: int) -> tuple[list[Prompt], str]:
    """Return the prompts of so many requests, and what a row says of them."""
    n = n_segments(bench, n_requests)
    data = f"{n_requests} request{'s' * (n_requests > 1)}, {ttft.workload(bench, n)}"
    return [bench.prompt(n, i) for i in range(n_requests)], data


def n_segments(bench: Bench, n_requests: int) -> int:
    """Return as many a prompt as let all requests' keys fit in full mode, at most the
    fewest that are measured elsewhere."""
    few = min(bench.sizes.segments)
    if bench.token_slots is None:
        return few
    own = SHARE * bench.token_slots / n_requests - bench.sizes.question - n_tokens(bench, n_requests)
    return max(1, min(few, int(own // bench.sizes.tokens)))


def why_few(bench: Bench, prompts: Sequence[Prompt]) -> str:
    n, few = len(prompts[0].documents), min(bench.sizes.segments)
    if n == few:
        return ""
    share = f"{100 * SHARE:.0f}% of the token slots"
    return f"; {n} segment{'s' * (n > 1)} and not {few}, so that in full mode all keys fit in {share}"


def n_tokens(bench: Bench, n_requests: int) -> int:
    """Count the tokens that a request may draw: one a step until all are under way, then those
    that settle, then the timed ones."""
    return n_requests + SETTLE + bench.sizes.decoded + 1


def step_times(bench: Bench, prompts: Sequence[Prompt], policy: Policy) -> list[float]:
    """Time each step, in ms, with all of the prompts under way. Raises as ``under_way``."""
    with under_way(bench, prompts, policy):
        times = [elapsed_ms(bench.engine.step, bench.device) for _ in range(bench.sizes.decoded)]
    bench.say(f"{len(prompts)} requests, {policy.mode}: {sorted(times)[len(times) // 2]:.2f} ms a step")
    return times


@contextmanager
def under_way(bench: Bench, prompts: Sequence[Prompt], policy: Policy) -> Iterator[None]:
    """Give every prompt its first tokens; they come one a step, so that prefills do not pile up, and go at the end.

    Raises WrongPath where they do not all fit.
    """
    engine = bench.engine
    sampling = Sampling(max_new_tokens=n_tokens(bench, len(prompts)))
    ids: list[int] = []
    try:
        for prompt in prompts:
            ids.append(engine.add_request(prompt, sampling, policy))
            outputs = engine.step()
            running = sum(output.error is None for output in outputs)
            if running < len(ids):
                raise WrongPath(f"{len(ids)} requests should be under way, and the device has room for {running}")
        for _ in range(SETTLE):
            engine.step()
        yield
    finally:
        for request in ids:
            engine.cancel(request)
