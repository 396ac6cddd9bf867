"""Time to the first token: warm, cold, prefix-only, full, the Hugging Face model; and the ingestion rate.

All ways take turns inside each repetition, so that the machine's noise meets every one of them.
"""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from hypic_eval.intervals import median
from hypic_eval.machine import commit, describe_machine
from hypic_eval.modes import FULL, documents_live
from hypic_eval.results import ResultRow, Results
from hypic_eval.workloads import Workload
from hypic_rag.errors import HypicError
from hypic_rag.prompt import Prompt

if TYPE_CHECKING:
    from hypic_rag.engine import Policy, SegmentEngine

VERSION = 1
INGEST_GOAL = 0.8
"""Ingestion's tokens a second, relative to a plain prefill of the same documents."""
HUGGING_FACE_GOAL = 1.2
"""Full recompute's time, relative to the Hugging Face model's own forward."""
WAYS = ("ingest", "warm", "full", "plain", "prefix_only", "warm_disk", "cold")
"""In the order of a repetition: ingestion leaves warm entries, and cold removes them."""
NOTES = [
    "Times are medians with quartiles, from the prompt's token ids to the first token's id, on the host. "
    "Ratios are of pairs taken in the same round.",
    "ingest: entries made and written, no answer. warm: entries in memory. warm_disk: memory emptied, "
    "entries on disk (in the system's page cache). cold: no entries, they are made and written. "
    "prefix_only: the leading segment's entry, the rest live. plain: the Hugging Face model's own forward.",
]

Sample = dict[str, float]


class PlainForward(Protocol):
    def __call__(self, token_ids: Sequence[int]) -> int:
        """Return the first token after ``token_ids``, by a model that knows nothing of segments."""


class WrongPath(HypicError):
    """A run did not take the path that it should time: the figure would be of something else."""


def run_ttft(
    engine: "SegmentEngine",
    plain: PlainForward,
    workloads: Iterable[Workload],
    n: int,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Results:
    """Time every way ``n`` times on each workload, after one untimed round of the first.

    engine: with a cache of its own on a disk, host budget unlimited; its entries for the prompts are removed.
    on_progress: called with the workload's name, rounds done and rounds in all.
    Raises WrongPath if a segment did not come from where it should: a cold run that found an entry, say.
    """
    rows: list[ResultRow] = []
    samples: dict[str, Any] = {}
    for number, workload in enumerate(workloads):
        n_untimed = 0 if number else 1  # the first passes of a process set up torch
        rounds = []
        for i in range(n + n_untimed):
            rounds.append(one_round(engine, plain, workload.prompts[i % len(workload.prompts)]))
            on_progress(workload.name, i + 1, n + n_untimed)
        rows += summarise(engine.model_name, workload, rounds[n_untimed:])
        samples[workload.name] = rounds[n_untimed:]
    return Results("ttft", describe_machine(), rows, NOTES, samples=samples)


def one_round(engine: "SegmentEngine", plain: PlainForward, prompt: Prompt) -> dict[str, Sample]:
    """Take one sample of each way, on one prompt."""
    keys = [engine.segment_key(ids) for ids in prompt.documents if len(ids) > engine.policy.seam_tokens]
    leading = [part.ids for part in prompt.parts if part.kind == "leading"]
    keys += [engine.segment_key(ids, kind="leading") for ids in leading]
    digests = [key.digest for key in keys]
    round_: dict[str, Sample] = {}

    engine.cache.discard(digests)
    started = perf_counter()
    ingested = engine.prefill(prompt.documents)
    seconds = perf_counter() - started
    if ingested.n_hits:
        raise WrongPath(f"ingestion found {ingested.n_hits} of {ingested.n_segments} segments in an emptied cache")
    round_["ingest"] = {"ms": 1e3 * seconds, "tokens": ingested.n_tokens}

    engine.prefill(leading, kind="leading")
    round_["warm"] = answer(engine, prompt, engine.policy, tier="host")
    round_["full"] = answer(engine, prompt, FULL.policy, tier="live")
    started = perf_counter()
    plain(prompt.token_ids)
    round_["plain"] = {"ms": 1e3 * (perf_counter() - started), "tokens": prompt.n_tokens}
    round_["prefix_only"] = answer(engine, documents_live(prompt), engine.policy)
    engine.cache.host.clear()
    round_["warm_disk"] = answer(engine, prompt, engine.policy, tier="disk")
    engine.cache.discard(digests)
    round_["cold"] = answer(engine, prompt, engine.policy, tier=None)
    return round_


def answer(engine: "SegmentEngine", prompt: Prompt, policy: "Policy", tier: str | None = "host") -> Sample:
    """Ask for one token; ``tier`` is where every document segment must come from (None: a miss)."""
    from hypic_rag.engine import Sampling

    started = perf_counter()
    report = engine.generate(prompt, Sampling(max_new_tokens=1), policy=policy).report
    wall = perf_counter() - started
    found = {use.tier for use in report.segments if use.n_tokens > policy.seam_tokens or tier == "live"}
    if found - {tier} or report.resumed_tokens:
        raise WrongPath(
            f"every document should have come from {tier or 'nowhere (a miss)'}, but they came from "
            f"{', '.join(sorted(map(str, found)))}, and {report.resumed_tokens} tokens from a conversation; "
            "give the engine a cache with room for all segments"
        )
    return {"ms": report.ttft_ms, "tokens": report.computed_tokens, "wall_ms": 1e3 * wall}


def summarise(model: str, workload: Workload, rounds: Sequence[dict[str, Sample]]) -> list[ResultRow]:
    """Return medians of every way, and the ratios with their goals."""

    def row(
        way: str, metric: str, arrow: str, unit: str, values: Sequence[float], goal: float | None = None
    ) -> ResultRow:
        estimate = median(values)
        return ResultRow(
            task="ttft",
            version=VERSION,
            data=workload.name,
            n=len(rounds),
            mode=way,
            metric=metric,
            arrow=arrow,
            unit=unit,
            value=estimate.value,
            interval=estimate.interval,
            model=model,
            commit=commit(),
            settings={"interval": "quartiles", "n_prompts": len(workload.prompts)},
            goal=goal,
        )

    def each(way: str, name: str) -> list[float]:
        return [sample[way][name] for sample in rounds]

    def ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
        return [a / b for a, b in zip(above, below, strict=True)]

    def rate(way: str) -> list[float]:
        return [1e3 * tokens / ms for tokens, ms in zip(each(way, "tokens"), each(way, "ms"), strict=True)]

    full = each("full", "ms")
    rows = [
        row(way, metric, arrow, unit, each(way, name))
        for way in WAYS
        for metric, arrow, unit, name in (
            ("time", "↓", "ms", "ms"),
            ("tokens computed", "", "tokens", "tokens"),
        )
    ]
    rows += [
        row(
            way,
            "times faster than full",
            "↑",
            "x",
            ratio(full, each(way, "ms")),
            workload.goal if way == "warm" else None,
        )
        for way in WAYS
        if way not in ("ingest", "full")
    ]
    rows.append(row("full", "time relative to plain", "↓", "x", ratio(full, each("plain", "ms")), HUGGING_FACE_GOAL))
    rows += [row(way, "rate", "↑", "tokens/s", rate(way)) for way in ("ingest", "full", "plain")]
    rows.append(row("ingest", "rate relative to full", "↑", "x", ratio(rate("ingest"), rate("full")), INGEST_GOAL))
    return rows
