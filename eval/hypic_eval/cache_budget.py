"""How much comes from a cache that has room for a part of its segments, where documents are asked about by Zipf.

The tier that keeps entries in memory is asked, with entries of the documents' true sizes and nothing in them: no model
runs. Beside it the same requests with what was used longest ago dropped first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hypic_eval.intervals import mean
from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results
from hypic_eval.summary import result_row
from hypic_eval.sweep import check
from hypic_eval.task import read_questions
from hypic_eval.trace import pool_of, zipf_draws
from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.cache.tiers.host import HostTier

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

VERSION = 1
"""Raised whenever a change to this file, to traces or to what is evicted alters any figure."""
EXPONENTS = (0.7, 1.0)
K = 5  # documents a request
FEWEST_REQUESTS = 2000
SEEDS = range(5)


class Tier(Protocol):
    """Entries by name within a budget of bytes."""

    def get(self, name: str) -> Entry | None: ...

    def put(self, name: str, entry: Entry) -> object: ...


class LeastRecentlyUsed:
    """Drops what was used longest ago."""

    def __init__(self, budget: int):
        self.budget, self.nbytes = budget, 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def get(self, name: str) -> Entry | None:
        if name in self._entries:
            self._entries.move_to_end(name)
        return self._entries.get(name)

    def put(self, name: str, entry: Entry) -> None:
        if entry.nbytes > self.budget:
            return
        self._entries[name] = entry
        self.nbytes += entry.nbytes
        while self.nbytes > self.budget:
            self.nbytes -= self._entries.popitem(last=False)[1].nbytes


TIERS: dict[str, Callable[[int], Tier]] = {"hypic-rag": HostTier, "least recently used": LeastRecentlyUsed}


def run_budget_sweep(
    engine: "SegmentEngine",
    path: Path,
    values: Sequence[float],
    limit: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Results:
    """Measure the share of the documents' tokens that come from the cache, by its budget in percent of all entries.

    values: percent. limit: documents of the file's first questions only. Raises BadInput for values below 0 or above
    100, and for files of fewer documents than a request has.
    """
    check("budget", values)
    _, questions = read_questions(path, limit=limit)
    pools = [entries_of(engine, pool_of(questions, None, seed)) for seed in SEEDS]
    n_requests = max(FEWEST_REQUESTS, 2 * len(pools[0]))
    total_bytes = sum(entry.nbytes for entry in pools[0])
    rows: list[ResultRow] = []
    for exponent in EXPONENTS:
        traces = [zipf_draws(n_requests, len(pools[0]), K, exponent, seed) for seed in SEEDS]
        for name, make in TIERS.items():
            mode = f"{name}, Zipf {exponent:g}"
            for done, percent in enumerate(values, start=1):
                budget = int(total_bytes * percent / 100)
                shares = [hit_shares(make(budget), *one) for one in zip(pools, traces, strict=True)]
                known = {
                    "task": "cache",
                    "version": VERSION,
                    "data": path.stem,
                    "n": len(SEEDS) * (n_requests - n_requests // 2),
                    "mode": f"{mode}, budget {percent:g}%",
                    "model": engine.model_name,
                    "commit": commit(),
                    "settings": {
                        "budget": budget,
                        "n_documents": len(pools[0]),
                        "interval": f"95% bootstrap over {len(SEEDS)} traces",
                        "sweep": {"axis": "budget", "x": percent, "mode": mode},
                    },
                }
                for metric, share in zip(("tokens", "segments"), zip(*shares, strict=True), strict=True):
                    found = mean([100 * one for one in share])
                    rows.append(result_row((f"{metric} from the cache", "↑", "%"), found.value, found.interval, known))
                on_progress(mode, done, len(values))
    notes = [
        f"{path.stem}: {len(pools[0])} documents, whose segments take {total_bytes / 2**20:.0f} MiB in all, or "
        f"{total_bytes / fmean(map(len, pools)) / 2**20:.1f} MiB each. {n_requests} requests for {K} documents by "
        f"Zipf, {len(SEEDS)} times, each time with others the most popular; all were put into the cache before, as "
        "ingestion does, and the first half of the requests does not count."
    ]
    return Results("sweep", describe_machine(), rows, notes)


def entries_of(engine: "SegmentEngine", documents: Sequence[tuple[str, str]]) -> list[Entry]:
    """Make an entry of its size and no content for each document that has one."""
    entries = []
    for title, text in documents:
        n_tokens = len(engine.format.document(text, title))
        if nbytes := engine.entry_bytes(n_tokens):
            room: Any = torch.empty(nbytes, dtype=torch.uint8, device="meta")
            entries.append(Entry(n_tokens, engine.policy.seam_tokens, (LayerEntry("size", {"S": room}),)))
    return entries


def hit_shares(tier: Tier, entries: Sequence[Entry], requests: NDArray[np.int64]) -> tuple[float, float]:
    """Put all entries, ask for those of the requests (n, k), and put what is missing. Return the shares that were there
    of the tokens and of the entries, over the second half of the requests."""
    for i in range(len(entries)):
        tier.put(str(i), entries[i])
    hits = np.zeros(requests.shape, dtype=bool)
    for at, row in enumerate(requests.tolist()):
        for j, i in enumerate(row):
            hits[at, j] = tier.get(str(i)) is not None
            if not hits[at, j]:
                tier.put(str(i), entries[i])
    half = len(requests) // 2
    n_tokens = np.array([entry.n_tokens for entry in entries])[requests[half:]]
    return float(n_tokens[hits[half:]].sum() / n_tokens.sum()), float(hits[half:].mean())
