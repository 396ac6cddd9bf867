"""Whether one tenant of a server can tell, by an answer or by its time, what another one has cached."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypic_eval.intervals import median
from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile, row_key

from hypic_qualify.api import Api
from hypic_qualify.equivalence import Equivalence, tost

VERSION = 1
MARGIN = 0.1  # of the time between a miss and a hit
N_WARMING = 4  # rounds that are not counted
N_WORDS = 40
QUESTION = "What is said?"
NOTES = [
    "Every round has two documents of random words. Tenant A asks over one of them, so that its segment is cached; "
    "tenant B asks over both, in random order, and once more over the first, which is now a hit of its own. Times are "
    "of whole answers of one token, as B sees them.",
    "Difference: known to A less known to nobody, trimmed mean of the pairs with its 90% interval. It counts as none "
    "if the interval lies within a tenth of the time between miss and hit (TOST, 5%).",
]


@dataclass
class Times:
    """The times of tenant B, ms: over what A has cached, over what nobody has, and over what it has cached itself. odd:
    answers that name a tier or a reason where they should not."""

    known: list[float] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    commits: str = ""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> "Times":
        """rows: as ``one_round`` gives them, with the commit."""
        known, unknown, hit = ([row[name] for row in rows] for name in ("known", "unknown", "hit"))
        return cls(known, unknown, hit, [text for row in rows for text in row["odd"]], commits(rows))

    @property
    def gap(self) -> float:
        """From a hit to a miss."""
        return median(self.unknown).value - median(self.hit).value


def measure_tenants(
    url: str,
    keys: tuple[str, str],
    n: int,
    seed: int = 0,
    row_file: RowFile | None = None,
    model: str = "",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Times:
    """Measure whether the time of an answer tells a tenant what another has cached.

    keys: of tenants A and B. n: requests of B over documents that it has not seen, half of them known to A.

    row_file: rounds that it has of this model are not asked again.
    """
    rows = row_file or RowFile(None)
    numbers = {row_key({"version": VERSION, "model": model, "seed": seed, "round": i}): i for i in range(n // 2)}
    left = {key: number for key, number in numbers.items() if rows.get(key) is None}
    with Api(url, keys[0]) as a, Api(url, keys[1]) as b:
        for i in range(N_WARMING if left else 0):
            one_round(a, b, random.Random(f"warming {seed} {i}"))
        for i, (key, number) in enumerate(left.items()):
            rows.append(key, {**one_round(a, b, random.Random(f"{seed} {number}")), "commit": commit()})
            on_progress(i + 1, len(left))
    return Times.of([rows.rows[key] for key in numbers])


def one_round(a: Api, b: Api, chance: random.Random) -> dict[str, Any]:
    """Time tenant B, in ms, over what A has cached, over what nobody has, and over what it has asked before."""
    texts = {"known": words(chance), "unknown": words(chance)}
    odd: list[str] = []
    ask(a, texts["known"], False, odd)
    order = list(texts)
    chance.shuffle(order)
    took = {name: ask(b, texts[name], False, odd) for name in order}
    return {**took, "hit": ask(b, texts[order[0]], True, odd), "odd": odd}


def ask(api: Api, document: str, is_hit: bool, odd: list[str]) -> float:
    """Time one answer, in ms."""
    began = time.perf_counter()
    answer = api.chat(QUESTION, documents=[document], max_tokens=1)
    took = 1e3 * (time.perf_counter() - began)
    tier, reason = (answer["documents"][0][name] for name in ("tier", "miss_reason"))
    if (tier is not None) != is_hit or reason != (None if is_hit else "never_seen"):
        odd.append(f"tier {tier}, {reason}, where {'a hit' if is_hit else 'never_seen'} was to be expected")
    return took


def words(chance: random.Random) -> str:
    """Draw words of a few syllables each, so that no two documents share more than some."""
    syllables = [chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(3 * N_WORDS)]
    return " ".join("".join(syllables[i : i + 3]) for i in range(0, len(syllables), 3))


def summarise(model: str, times: Times) -> tuple[Results, Equivalence | None]:
    """Summarise times; None where hits are no quicker than misses: then there is
    nothing to tell, nor to measure with."""

    def row(mode: str, metric: str, arrow: str, unit: str, value: float, interval: tuple[float, float] | None = None,
            goal: float | None = None) -> ResultRow:  # fmt: skip
        about = ("tenants", VERSION, "random words", len(times.known), mode, metric, arrow, unit, value, interval)
        return ResultRow(*about, model, times.commits, {"interval": "quartiles, or 90% of the difference"}, goal=goal)

    rows = []
    for mode, values in (("known to A", times.known), ("known to nobody", times.unknown), ("its own hit", times.hit)):
        found = median(values)
        rows.append(row(mode, "time", "↓", "ms", found.value, found.interval))
    rows.append(row("known to A", "found across", "↓", "answers", len(times.odd), goal=0))
    verdict = tost(times.known, times.unknown, MARGIN * times.gap) if times.gap > 0 else None
    if verdict is not None:
        beyond = max(0.0, verdict.interval[1] - verdict.margin, -verdict.interval[0] - verdict.margin)
        rows.append(row("known to A", "miss less hit", "", "ms", times.gap))
        rows.append(row("known to A", "difference", "", "ms", verdict.difference, verdict.interval))
        rows.append(row("known to A", "margin", "", "ms", verdict.margin))
        rows.append(row("known to A", "interval beyond the margin", "↓", "ms", beyond, goal=0))
    samples = {"known_ms": times.known, "unknown_ms": times.unknown, "hit_ms": times.hit, "odd": times.odd[:20]}
    return Results("tenants", describe_machine(), rows, NOTES, samples=samples), verdict
