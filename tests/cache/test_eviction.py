"""What is evicted first: traces in tokens that need not be prefilled, beside least recently used."""

import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from cache_samples import sample_entry, sample_key

from hypic_rag.cache import DiskTier, Entry, HostTier, LayerEntry, Miss, SegmentCache
from hypic_rag.cache.tiers.eviction import MOST_USES, Ranking, priority

FIXED, A_TOKEN = 700, 1  # bytes: as the default model's 7 MB a segment and 10 kB a token
Use = tuple[str, int]  # which segment, of how many tokens


def entry_of(n_tokens: int) -> Entry:
    return Entry(n_tokens, 0, (LayerEntry("gdn", {"S": torch.empty(FIXED + A_TOKEN * n_tokens, dtype=torch.uint8)}),))


def saved(trace: list[Use], budget: int) -> float:
    """The share of the trace's tokens that the host tier saves."""
    tier, n_saved = HostTier(budget), 0
    for name, n_tokens in trace:
        if tier.get(name) is None:
            tier.put(name, entry_of(n_tokens))
        else:
            n_saved += n_tokens
    return n_saved / sum(n_tokens for _, n_tokens in trace)


def saved_by_recency(trace: list[Use], budget: int) -> float:
    """The oracle that it is set against."""
    held: OrderedDict[str, int] = OrderedDict()
    nbytes = n_saved = 0
    for name, n_tokens in trace:
        if name in held:
            held.move_to_end(name)
            n_saved += n_tokens
            continue
        held[name] = FIXED + A_TOKEN * n_tokens
        nbytes += held[name]
        while nbytes > budget:
            nbytes -= held.popitem(last=False)[1]
    return n_saved / sum(n_tokens for _, n_tokens in trace)


def questions_and_a_scan(chance: random.Random) -> Iterator[Use]:
    """Ten documents that are asked about all the time; now and then somebody walks through sixty others once."""
    for round in range(20):
        for _ in range(40):
            yield f"hot{chance.randrange(10)}", 512
        for n in range(60):
            yield f"scan{round}-{n}", 512


def popularity(chance: random.Random) -> Iterator[Use]:
    """As the n-th most popular of 300 is asked for 1/n times as often."""
    for n in chance.choices(range(300), [1 / (n + 1) for n in range(300)], k=4000):
        yield f"{n}", 512


def short_and_long(chance: random.Random) -> Iterator[Use]:
    """Equally popular: a short segment takes nearly as many bytes as a long one, and saves an eighth of the tokens."""
    for n in chance.choices(range(80), k=4000):
        yield f"{n}", 64 if n % 2 else 512


def topics(chance: random.Random) -> Iterator[Use]:
    """Every 400 uses other 15 documents are the ones that are asked about."""
    for topic in range(10):
        for _ in range(400):
            yield f"{topic}-{chance.randrange(15)}", 512


def news(chance: random.Random) -> Iterator[Use]:
    """The same with a change every 100 uses, which is all that one can learn from."""
    for topic in range(40):
        for _ in range(100):
            yield f"{topic}-{chance.randrange(15)}", 512


def drift(chance: random.Random) -> Iterator[Use]:
    """What is popular moves on a little all the time."""
    for n in range(4000):
        yield f"{n // 40 + int(chance.expovariate(1 / 8))}", 512


def topics_of_all_lengths(chance: random.Random) -> Iterator[Use]:
    """Every 200 uses other 25 documents, a few more than fit."""
    for topic in range(20):
        lengths = [chance.choice((64, 512, 1024)) for _ in range(25)]
        for n in chance.choices(range(25), k=200):
            yield f"{topic}-{n}", lengths[n]


def old_favourites(chance: random.Random) -> Iterator[Use]:
    """Twenty documents are asked for a hundred times each, and then never again."""
    for n in range(2000):
        yield f"old{n % 20}", 512
    for _ in range(2000):
        yield f"new{chance.randrange(20)}", 512


def in_turn(chance: random.Random) -> Iterator[Use]:
    """Thirty one after the other, where twenty fit: the last used is the last to be used again."""
    for n in range(3000):
        yield f"{n % 30}", 512


TRACES = {  # of the tokens, what this saves, and what least recently used does
    "questions and a scan": (questions_and_a_scan, 0.373, 0.301),
    "popularity": (popularity, 0.421, 0.407),
    "short and long": (short_and_long, 0.382, 0.292),
    "topics of all lengths": (topics_of_all_lengths, 0.716, 0.705),
    "topics": (topics, 0.954, 0.963),  # the price of the others
    "news": (news, 0.846, 0.850),
    "drift": (drift, 0.830, 0.827),
    "old favourites": (old_favourites, 0.990, 0.990),
    "in turn": (in_turn, 0.000, 0.000),
}


@pytest.mark.parametrize("trace, share, by_recency", TRACES.values(), ids=TRACES)
def test_tokens_saved(trace, share, by_recency):
    uses, budget = list(trace(random.Random(0))), 20 * (FIXED + 512)
    assert saved(uses, budget) == pytest.approx(share, abs=0.001)
    assert saved_by_recency(uses, budget) == pytest.approx(by_recency, abs=0.001)


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("trace", [trace for trace, *_ in TRACES.values()], ids=TRACES)
def test_it_is_never_much_worse_than_least_recently_used(trace, seed):
    uses, budget = list(trace(random.Random(seed))), 20 * (FIXED + 512)
    assert saved(uses, budget) > saved_by_recency(uses, budget) - 0.015


def test_the_disk_evicts_as_the_memory_does(tmp_path):
    """Where all entries have one size, so that files and tensors compare."""
    entry, chance = sample_entry(), random.Random(0)
    names = [3 * (n // 60) + min(int(chance.expovariate(0.5)), 9) for n in range(300)]
    host = HostTier(int(4.5 * entry.nbytes))
    with closing(DiskTier(tmp_path)) as disk:
        disk.put(sample_key(1000), entry)
        disk.budget = int(4.5 * disk.totals()[1])
        disk.discard([sample_key(1000).digest])
        for name in names:
            key = sample_key(name)
            in_memory, on_disk = host.get(key.digest), disk.get(key)
            assert (in_memory is None) == isinstance(on_disk, Miss), name
            if in_memory is None:
                host.put(key.digest, entry)
                disk.put(key, entry)
        assert host.n_evicted == disk.n_evicted > 20


def test_how_many_uses_count_is_learnt():
    ranking = Ranking()
    for n in range(100):  # new ones that come back when they had no time to be used again
        ranking.add(f"{n % 3}", 1, 1)
        ranking.evict(f"{n % 3}")
        ranking.add(f"{n % 3}", 1, 1)
        ranking.remove(f"{n % 3}")
    assert ranking._most_uses == 1
    for _ in range(3):  # one that had been, and comes back
        ranking.add("favourite", 1, 1)
        ranking.use("favourite")
        ranking.evict("favourite")
    assert ranking._most_uses == 3


def test_a_favourite_leaves_when_the_memory_was_filled_so_many_times():
    one = entry_of(512)
    tier = HostTier(4 * one.nbytes)
    tier.put("favourite", one)
    for _ in range(1000):
        tier.get("favourite")
    n_put = 0
    while "favourite" in tier:
        tier.put(f"{n_put}", entry_of(512))
        n_put += 1
    assert 3 * (MOST_USES - 1) <= n_put <= 4 * MOST_USES


def test_priorities_are_those_of_the_report():
    assert priority(3.0, 2, 10, 5) == 3.0 + 2 * 10 / 5
    assert priority(0.0, 1000, 10, 5) == MOST_USES * 10 / 5
    assert priority(0.0, 1, 10, 0) == 10


def test_nothing_changes_where_what_is_spared_takes_the_room():
    ranking = Ranking()
    for digest in "abc":
        ranking.add(digest, 1, 10)
    assert ranking.victims(10, {"a"}) == ["b"]
    assert ranking.victims(30, {"a"}) is None
    assert ranking.victims(20, {"b"}) == ["a", "c"]
    ranking.use("a")
    ranking.remove("b")
    assert ranking.victims(20, set()) == ["c", "a"]


def test_the_heap_does_not_grow_with_uses():
    ranking = Ranking()
    ranking.add("a", 1, 10)
    for _ in range(10_000):
        ranking.use("a")
    assert len(ranking._heap) < 200 and ranking.victims(1, set()) == ["a"]


def test_on_disk_what_was_used_outlives_a_scan_and_the_process(tmp_path):
    hot, entry = [sample_key(n) for n in range(3)], sample_entry()
    with SegmentCache.open(tmp_path, host_budget=0) as cache:
        for key in hot:
            cache.put(key, entry)
            for _ in range(3):
                cache.lookup(key)
        one = cache.nbytes("disk") // 3
    with SegmentCache.open(tmp_path, host_budget=0, disk_budget=4 * one) as cache:
        for n in range(10, 13):
            cache.put(sample_key(n), entry)
        assert [cache.contains(key) for key in hot] == ["disk"] * 3
        for n in range(20, 30):  # but not for ever
            cache.put(sample_key(n), entry)
        assert [cache.contains(key) for key in hot] == [None] * 3


def test_an_eviction_is_one_look_into_an_index(tmp_path):
    with SegmentCache.open(tmp_path) as cache:
        cursor = cache.disk._index._db.cursor()
        cursor.row_factory = None  # no columns of ours
        query = "EXPLAIN QUERY PLAN SELECT id FROM entry WHERE pinned = 0 ORDER BY priority, last_used, id"
        plan = cursor.execute(query).fetchall()
    assert len(plan) == 1 and "entry_by_priority (pinned=?)" in plan[0][-1]
