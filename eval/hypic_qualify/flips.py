"""Flips bits in files of a segment cache, one at a time: whatever is damaged has to be a miss, never an answer."""

import contextlib
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results

if TYPE_CHECKING:
    from hypic_rag import SegmentEngine
    from hypic_rag.cache import Entry, SegmentCache, SegmentKey
    from hypic_rag.prompt import Prompt

VERSION = 1
N_DOCUMENTS, N_WORDS = 6, 60
HEAD_BYTES = 2048
"""Where half of the flips are: the lengths, names, shapes and identity before the numbers."""
AN_ANSWER_IN, AN_INDEX_IN = 100, 20
"""One flip in so many is met by a whole answer; so many fewer are in the index than in entries."""
NOTES = [
    f"One bit a time, in the file of an entry of a tiny model; half of them in its first {HEAD_BYTES} bytes. Found: "
    "the lookup says damaged. Answers: asked while a segment is damaged, they have to be those of the sound cache, and "
    "say that the segment was missed.",
    "Index: one bit of index.sqlite. Lookups then may hit, with the bits that were stored, or miss; a cache that "
    "refuses to open is counted too.",
]


@dataclass
class Flipped:
    """by_outcome: of flips in the index."""

    n: int = 0
    n_found: int = 0
    n_answers: int = 0
    n_right: int = 0
    by_outcome: Counter[str] | None = None
    unfound: list[str] | None = None


def run_flips(
    folder: Path, n: int, seed: int = 0, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> Results:
    """Make n flips, in a cache that is made in ``folder`` for it."""
    from hypic_qualify.tiny_model import make
    from hypic_rag import Policy, SegmentEngine
    from hypic_rag.cache import SegmentCache

    cache = SegmentCache.open(folder / "segments")
    engine = SegmentEngine.from_pretrained(make(folder / "model"), cache=cache, policy=Policy())
    chance = random.Random(seed)
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "ru") for b in ("ten", "dor", "var", "sil", "pan")]
    texts = [" ".join(chance.choices(words, k=N_WORDS)) for _ in range(N_DOCUMENTS)]
    prompt = engine.format.prompt("Which of them?", [("", text) for text in texts])
    flipped = flip_entries(engine, folder / "segments", prompt, n, chance, on_progress)
    keys = [engine.segment_key(ids) for ids in prompt.documents]
    entries = [_entry(cache, key) for key in keys]
    cache.close()
    with said_nothing():  # of indexes that are damaged, which they are
        outcomes = flip_index(folder, keys, entries, max(1, n // AN_INDEX_IN), chance)
    return summarise(flipped, outcomes)


def flip_entries(
    engine: "SegmentEngine",
    folder: Path,
    prompt: "Prompt",
    n: int,
    chance: random.Random,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Flipped:
    """Flip bits of entries' files. folder: of the engine's disk tier."""
    from hypic_rag.cache import Miss
    from hypic_rag.cache.tiers.files import entry_path
    from hypic_rag.engine import Sampling

    sampling, flipped = Sampling(max_new_tokens=8), Flipped(unfound=[])
    right = engine.generate(prompt, sampling).token_ids
    keys = [engine.segment_key(ids) for ids in prompt.documents]
    entries = [_entry(engine.cache, key) for key in keys]
    for i in range(n):
        which = chance.randrange(len(keys))
        key, path = keys[which], entry_path(folder, keys[which].digest)
        bit = flip(path, chance, HEAD_BYTES if i % 2 else None)
        engine.cache.host.clear()
        if i % AN_ANSWER_IN == 0:
            generation = engine.generate(prompt, sampling)
            use = generation.report.segments[which]
            found = use.tier is None and use.miss_reason == "damaged"
            flipped.n_answers += 1
            flipped.n_right += generation.token_ids == right
        else:
            looked_up = engine.cache.lookup(key)
            found = isinstance(looked_up, Miss) and looked_up.reason == "damaged"
            engine.cache.put(key, entries[which])
        flipped.n += 1
        flipped.n_found += found
        if not found:
            flipped.unfound.append(f"bit {bit} of {path.name}")  # type: ignore[union-attr]
        on_progress(i + 1, n)
    return flipped


def flip(path: Path, chance: random.Random, first_bytes: int | None = None) -> int:
    """Flip one bit of a file, in place. Return which."""
    content = bytearray(path.read_bytes())
    bit = chance.randrange(8 * min(len(content), first_bytes or len(content)))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return bit


def flip_index(
    folder: Path, keys: "Sequence[SegmentKey]", entries: "Sequence[Entry]", n: int, chance: random.Random
) -> Counter[str]:
    """Flip a bit of the index n times; count how the lookups of all keys ended.

    folder: with a closed cache in ``segments``, which is copied.
    """
    from hypic_rag.cache import Hit, SegmentCache
    from hypic_rag.errors import StoreDamaged, StoreMismatch

    outcomes: Counter[str] = Counter()
    for _ in range(n):
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder / "segments", copy)
        flip(copy / "index.sqlite", chance)
        try:
            cache = SegmentCache.open(copy)
        except (StoreDamaged, StoreMismatch):
            outcomes["refused"] += 1
            continue
        for key, entry in zip(keys, entries, strict=True):
            found = cache.lookup(key)
            outcomes["missed" if not isinstance(found, Hit) else "hit" if same(found.entry, entry) else "wrong"] += 1
        cache.close()
    return outcomes


@contextlib.contextmanager
def said_nothing() -> Iterator[None]:
    """Silence the cache's warnings."""
    log = logging.getLogger("hypic_rag.cache")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def same(one: "Entry", other: "Entry") -> bool:
    """Compare two entries bit for bit."""
    import torch

    return len(one.layers) == len(other.layers) and all(
        a.family == b.family
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
        for a, b in zip(one.layers, other.layers, strict=True)
    )


def _entry(cache: "SegmentCache", key: "SegmentKey") -> "Entry":
    from hypic_rag.cache import Hit

    found = cache.lookup(key)
    assert isinstance(found, Hit), found
    return found.entry


def summarise(flipped: Flipped, outcomes: Counter[str]) -> Results:
    def row(
        mode: str, n: int, metric: str, arrow: str, unit: str, value: float, goal: float | None = None
    ) -> ResultRow:
        about = ("flips", VERSION, "one bit", n, mode, metric, arrow, unit, value, None)
        return ResultRow(*about, "tiny", commit(), goal=goal)

    rows = [
        row("entries", flipped.n, "found", "↑", "%", 100 * flipped.n_found / flipped.n, 100),
        row("answers", flipped.n_answers, "right", "↑", "%", 100 * flipped.n_right / flipped.n_answers, 100),
        *(row("index", sum(outcomes.values()), name, "", "lookups", outcomes[name]) for name in ("hit", "missed")),
        row("index", sum(outcomes.values()), "wrong", "↓", "lookups", outcomes["wrong"], 0),
        row("index", sum(outcomes.values()), "refused", "", "lookups", outcomes["refused"]),
    ]
    return Results("flips", describe_machine(), rows, NOTES, samples={"unfound": flipped.unfound})
