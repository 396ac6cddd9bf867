"""The device tier gives back what was put in, bit for bit, and never gives a place twice.

On a GPU: HYPIC_TEST_DEVICE=cuda pytest tests/cache/test_device_tier.py
"""

import random
from itertools import pairwise

import pytest
import torch
from device_samples import DEVICE, GDN, HYBRID, MODELS, N_HEADS, SEAM, assert_same, entry_of, flush, poisoned

from hypic_rag.cache import Entry
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerShapes, runs
from hypic_rag.errors import BadInput


def allocated(pool: DevicePool) -> int:
    """Bytes of all memories of the pool, each once."""
    tensors = [
        t
        for layer in pool.layers
        for t in (*layer.slots.values(), *layer.tokens.values(), layer.matrices, layer.T_at)
        if t is not None
    ]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n_interior", [1, 16, 37])
def test_what_goes_in_comes_out(layers, n_interior):
    pool = poisoned(layers, DEVICE, n_slots=4, n_tokens=160)
    entries = {name: entry_of(layers, n_interior, seed) for seed, name in enumerate("abc")}
    for name, entry in entries.items():
        resident = pool.put(name, entry)
        assert (resident.digest, resident.n_tokens, resident.seam_tokens) == (name, SEAM + n_interior, SEAM)
        assert resident.n_interior == n_interior
    for name, entry in entries.items():
        assert_same(pool.views(pool.get(name)), entry)
    assert pool.stats().n_entries == len(pool) == 3 and pool.stats().hits == 3


def test_views_do_not_copy_but_a_dense_T():
    pool = DevicePool(HYBRID, DEVICE, 2, 64)
    resident = pool.put("a", entry_of(HYBRID, 20))
    for view, layer in zip(pool.views(resident), pool.layers, strict=True):
        for name in view.keys() - {"T"}:
            slab = layer.slots[name] if name in layer.slots else layer.tokens[name]
            assert view[name].untyped_storage().data_ptr() == slab.untyped_storage().data_ptr()


def test_tokens_lie_token_by_token_and_layers_share_one_place():
    pool = DevicePool(HYBRID, DEVICE, 3, 96)
    pool.put("a", entry_of(HYBRID, 17))
    entry = entry_of(HYBRID, 20, seed=1)
    resident = pool.put("b", entry)
    flush(pool)
    assert resident.token_at == 32  # behind 17, rounded up to a multiple of 16
    for i in (2, 4):
        for name, slab in pool.layers[i].tokens.items():
            assert slab.shape[0] == 96
            lies = slab[resident.token_at : resident.token_at + 20].cpu()
            assert torch.equal(lies, entry.layers[i].tensors[name].transpose(0, 1))


DEAD = {  # dead heads, of the 9 in three layers
    "none": (),
    "one": (4,),
    "first and last": (0, 8),
    "a layer": (3, 4, 5),
    "every other": (1, 3, 5, 7),
    "all": tuple(range(9)),
}


@pytest.mark.parametrize("dead", DEAD.values(), ids=DEAD)
def test_dead_heads_are_not_stored(dead):
    pool = poisoned(HYBRID, DEVICE, n_slots=2, n_tokens=64, n_matrices=20)
    first, entry = entry_of(HYBRID, 5), entry_of(HYBRID, 20, seed=1, dead=dead)
    pool.put("first", first)
    resident = pool.put("a", entry, dead_below=1e-4)
    flush(pool)
    assert resident.n_matrices == N_HEADS - len(dead)
    assert resident.nbytes == 32 * 2 * 2 * (2 * 6 + 2 * 8) + 3 * 4 * (3 * 4 * 5 + 3) + 3 * 3 * 7 * 2 + 64 * (
        9 - len(dead)
    )
    numbers = [int(at) for layer in (0, 1, 3) for at in pool.layers[layer].T_at[resident.slot]]
    live = [at for at in numbers if at >= 0]
    assert [head for head in range(9) if numbers[head] == -1] == list(dead)
    assert live == list(range(9, 18 - len(dead)))  # in a row, behind the first entry's
    assert_same(pool.views(resident), entry, dead)
    assert_same(pool.views(pool.get("first")), first)


def test_without_a_bound_every_head_is_stored():
    pool = DevicePool(HYBRID, DEVICE, 1, 64)
    entry = entry_of(HYBRID, 5, dead=range(9))
    resident = pool.put("a", entry)
    assert resident.n_matrices == 9
    assert_same(pool.views(resident), entry)


def test_a_slot_used_again_has_its_own_dead_heads():
    pool = DevicePool(HYBRID, DEVICE, 1, 64)
    pool.put("a", entry_of(HYBRID, 5, dead=(0, 1)), dead_below=1e-4)
    entry = entry_of(HYBRID, 5, seed=1, dead=(8,))
    assert_same(pool.views(pool.put("b", entry, dead_below=1e-4)), entry, dead=(8,))
    assert "a" not in pool


STEPS = {  # slots, token slots, matrices; steps: put NAME TOKENS, get, pin, unpin, discard, lease TOKENS; what is left
    "the oldest goes for its slot": (2, 160, 18, "put a 5, put b 5, put c 5", "bc"),
    "the oldest goes for its tokens": (4, 32, 36, "put a 5, put b 5, put c 5", "bc"),
    "the oldest goes for its matrices": (4, 64, 18, "put a 5, put b 5, put c 5", "bc"),
    "what was looked up stays": (2, 160, 18, "put a 5, put b 5, get a, put c 5", "ac"),
    "what was put again stays": (2, 160, 18, "put a 5, put b 5, put a 5, put c 5", "ac"),
    "what is pinned stays": (2, 160, 18, "put a 5, pin a, put b 5, put c 5", "ac"),
    "pinned before it came": (2, 160, 18, "pin a, put a 5, put b 5, put c 5", "ac"),
    "pins nest": (2, 160, 18, "put a 5, pin a, pin a, unpin a, put b 5, put c 5", "ac"),
    "unpinned goes": (2, 160, 18, "put a 5, pin a, unpin a, put b 5, put c 5", "bc"),
    "no room beside the pinned": (2, 160, 18, "put a 5, put b 5, pin a, pin b, put c 5 none", "ab"),
    "longer than the pool": (4, 64, 36, "put a 5, put b 5, put c 65 none", "ab"),
    "as long as the pool": (4, 64, 36, "put a 5, put b 5, put c 64", "c"),
    "a stretch in a row": (4, 64, 36, "put a 16, put b 16, put c 16, put d 16, get a, get c, put e 32", "cde"),
    "what is not in the way stays": (4, 64, 36, "put a 16, put b 32, put c 16, put d 32", "acd"),
    "of two ways the older goes": (4, 48, 36, "put b 16, put a 16, put c 16, get c, get a, put d 32", "cd"),
    "a pin breaks the row": (4, 64, 36, "put a 16, put b 16, put c 16, put d 16, pin b, put e 48 none", "abcd"),
    "a slot is wanted besides": (3, 64, 27, "put a 16, put b 5, put c 5, put d 16", "bcd"),
    "discarded": (2, 160, 18, "put a 5, put b 5, discard a, put c 5", "bc"),
    "cleared": (2, 160, 18, "put a 5, put b 5, clear", ""),
    "a lease takes two slots": (3, 160, 27, "put a 5, put b 5, put c 5, lease 16", "c"),
    "a lease takes token slots": (8, 48, 72, "put a 5, put b 5, put c 5, lease 20", "c"),
    "a lease takes no matrices": (8, 160, 9, "put a 5, lease 20", "a"),
    "a lease stays": (3, 160, 27, "lease 16, put a 5, put b 5", "b"),
    "no room for a lease": (3, 160, 27, "put a 5, put b 5, pin a, pin b, lease 16 none", "ab"),
    "no room beside a lease": (2, 160, 27, "lease 16, put a 5 none", ""),
}


def do(pool: DevicePool, steps: str) -> list:
    """Returns the leases taken."""
    leases = []
    for step in steps.split(", "):
        verb, *words = step.split()
        result = None
        if verb == "put":
            result = pool.put(words[0], entry_of(HYBRID, int(words[1])))
        elif verb == "lease":
            result = pool.lease(int(words[0]))
            leases.append(result)
        else:
            getattr(pool, verb)(*words)
        if verb in ("put", "lease"):
            assert (result is None) == (words[-1] == "none")
    return leases


@pytest.mark.parametrize("n_slots, n_tokens, n_matrices, steps, left", STEPS.values(), ids=STEPS)
def test_what_is_left(n_slots, n_tokens, n_matrices, steps, left):
    pool = DevicePool(HYBRID, DEVICE, n_slots, n_tokens, n_matrices)
    leases = do(pool, steps)
    assert [digest for digest in "abcde" if digest in pool] == list(left)
    in_use = sum(pool.lease_bytes(lease) for lease in leases if lease)
    assert pool.nbytes == in_use + sum(pool.get(digest).nbytes for digest in left)
    pool.clear()
    for digest in "abcde":
        for _ in range(steps.split(", ").count(f"pin {digest}") - steps.split(", ").count(f"unpin {digest}")):
            pool.unpin(digest)
    assert pool.nbytes == in_use and len(pool) == 0


def test_the_first_copy_stays():
    pool, first = DevicePool(HYBRID, DEVICE, 2, 64), entry_of(HYBRID, 5)
    assert pool.put("a", first) is pool.put("a", entry_of(HYBRID, 6, seed=1)) is pool.get("a")
    assert_same(pool.views(pool.get("a")), first)


def test_what_is_discarded_while_pinned_is_read_to_the_end():
    pool, old, new = DevicePool(HYBRID, DEVICE, 2, 64), entry_of(HYBRID, 5), entry_of(HYBRID, 5, seed=1)
    resident = pool.put("a", old)
    pool.pin("a")
    assert pool.discard("a") and not pool.discard("a")
    assert "a" not in pool and pool.get("a") is None
    again = pool.put("a", new)
    pool.discard("b")
    assert pool.put("b", old) is None  # both slots are held by pins of a
    assert_same(pool.views(resident), old)
    assert_same(pool.views(again), new)
    pool.unpin("a")
    assert pool.nbytes == again.nbytes
    assert pool.put("b", old) is not None and "a" in pool


def test_a_lease_is_given_back_once():
    pool = DevicePool(HYBRID, DEVICE, 2, 32)
    lease = pool.lease(17)
    assert (sorted(lease.slots), lease.token_at, lease.n_tokens) == ([0, 1], 0, 17)
    assert pool.lease(1) is None
    pool.free(lease)
    assert pool.nbytes == 0 and pool.lease(32) is not None
    with pytest.raises(AssertionError, match="not leased"):
        pool.free(lease)


def test_states_and_tokens_are_copied():
    pool, entry = DevicePool(HYBRID, DEVICE, 3, 64), entry_of(HYBRID, 20)
    resident = pool.put("a", entry)
    flush(pool)
    pool.copy_state(resident.slot, lease_slot := 1 if resident.slot == 0 else 0)
    pool.copy_tokens(resident.token_at, 44, 20)
    for layer, kept in zip(pool.layers, entry.layers, strict=True):
        for name, slab in layer.slots.items():
            assert torch.equal(slab[lease_slot].cpu(), kept.tensors[name])
        for name, slab in layer.tokens.items():
            assert torch.equal(slab[44:].cpu(), kept.tensors[name].transpose(0, 1))
    assert_same(pool.views(resident), entry)


ODD = {  # what would be made to fit by copying
    "a broadcast tail": (0, "tail", lambda t: t[:1]),
    "another type": (0, "tail", lambda t: t.float()),
    "half a T": (1, "T", lambda t: t[..., :1]),
    "a token too few": (2, "K", lambda t: t[:, :-1]),
    "one head for two": (4, "V", lambda t: t[:1]),
}


@pytest.mark.parametrize("layer, name, change", ODD.values(), ids=ODD)
def test_what_is_not_of_the_pools_shapes_is_refused(layer, name, change):
    pool, entry = DevicePool(HYBRID, DEVICE, 2, 64), entry_of(HYBRID, 5)
    entry.layers[layer].tensors[name] = change(entry.layers[layer].tensors[name])
    with pytest.raises(ValueError, match=f"layer {layer} of the entry has .*'{name}'"):
        pool.put("a", entry)
    with pytest.raises(ValueError, match="has 4 layers, the pool 5"):
        pool.put("a", Entry(8, SEAM, entry.layers[:4]))
    assert pool.nbytes == 0


def test_entries_whose_copies_fail_are_dropped(monkeypatch):
    pool, entry = DevicePool(HYBRID, DEVICE, 3, 48), entry_of(HYBRID, 16)
    before = pool.put("before", entry_of(HYBRID, 16, seed=1))
    flush(pool)

    def fail(*_):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(pool._slabs, "copy_in", fail)
        pool.put("a", entry)
        pool.put("b", entry)
        with pytest.raises(torch.OutOfMemoryError):
            pool.flush()
    assert "a" not in pool and "b" not in pool and pool.nbytes == before.nbytes
    assert_same(pool.views(before), entry_of(HYBRID, 16, seed=1))
    assert_same(pool.views(pool.put("a", entry)), entry)


BUDGETS = {  # bytes; one segment and one sequence of HYBRID take 10,354
    "one segment": 10_400,
    "a few": 40_000,
    "many": 1_000_000,
}


@pytest.mark.parametrize("layers", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize("live_share", [1.0, 0.4])
def test_a_budget_is_kept_and_used(layers, budget, live_share):
    options = {"tokens_a_segment": 20, "n_sequences": 1, "tokens_a_sequence": 17, "live_share": live_share}
    pool = DevicePool.within(budget, layers, DEVICE, **options)
    assert allocated(pool) == pool.budget == pool.stats().budget <= budget
    assert budget - pool.budget < 6_000  # one segment more, with its matrices, would not fit
    leased = pool.lease(17)
    n_heads = sum(shapes.matrices[0] for shapes in layers if shapes.matrices)
    dead = range(int(n_heads * live_share) if live_share < 1 else n_heads, n_heads)
    n_entries = 0
    while len(pool) == n_entries and n_entries < 40:  # until one makes another go
        assert pool.put(str(n_entries), entry_of(layers, 20, dead=dead), dead_below=1e-4)
        n_entries += 1
    assert n_entries == 40 or pool.nbytes > 0.5 * (pool.budget - 2 * pool._unit.slot)
    assert leased is not None and pool.nbytes <= pool.budget


def test_dead_heads_make_room_for_segments():
    pools = [DevicePool.within(10**6, HYBRID, DEVICE, 16, n_sequences=0, live_share=share) for share in (1.0, 0.25)]
    slots = [pool.layers[0].slots["S"].shape[0] for pool in pools]
    matrices = [pool.layers[0].matrices.shape[0] for pool in pools]
    assert slots[1] > slots[0] and matrices == [slots[0] * N_HEADS, -(-slots[1] // 4) * N_HEADS]


def test_a_budget_for_one_segment_holds_one_though_all_its_heads_live():
    options = {"tokens_a_segment": 16, "n_sequences": 0, "live_share": 0.1}
    least = 16 * 112 + 3 * 4 * (3 * 4 * 5 + 3) + 3 * 3 * 7 * 2 + 9 * 64
    pool = DevicePool.within(least, HYBRID, DEVICE, **options)
    assert pool.budget == least
    assert pool.put("a", entry_of(HYBRID, 16)).nbytes == least
    with pytest.raises(BadInput):
        DevicePool.within(least - 1, HYBRID, DEVICE, **options)


def test_a_budget_too_small_says_what_to_do():
    with pytest.raises(BadInput) as refused:
        DevicePool.within(60_000, HYBRID, DEVICE)
    assert str(refused.value) == (
        "a device budget of 60.0 kB is too small: 64 running sequences take 3.8 MB, and a segment of 1024 tokens "
        "116.1 kB. Give at least 3.9 MB (--device-memory), or 0 to run in torch without pools"
    )


def test_dense_transitions_are_of_one_size():
    with pytest.raises(ValueError, match=r"\[\(3, 4\), \(3, 8\)\]"):
        DevicePool([GDN, LayerShapes(matrices=(3, 8))], DEVICE, 1, 0)


def test_runs():
    assert runs([]) == runs([False]) == []
    assert runs([True]) == [(0, 1)]
    assert runs([True, True, False, False, True, False, True]) == [(0, 2), (4, 5), (6, 7)]


def test_thousands_of_steps_equal_a_simple_model():
    """Every place has one owner, everything put in and still here is as it was, pins and leases hold, and nothing is
    refused that would fit without what is unpinned."""
    chance = random.Random(0)
    n_slots, n_tokens, n_matrices = 9, 288, 55
    pool = DevicePool(HYBRID, DEVICE, n_slots, n_tokens, n_matrices)
    entries = {}
    for i in range(16):
        dead = chance.sample(range(9), chance.randrange(10))
        entries[str(i)] = entry_of(HYBRID, chance.randrange(1, 90), i, dead), dead
    here, leases, pins = {}, {}, dict.fromkeys(entries, 0)  # here: digest -> Resident, as we know them
    n = {"put": 0, "none": 0, "evicted": 0, "lease": 0}

    def stretch(at: int, length: int) -> set[int]:
        return set(range(at, at + -(-length // 16) * 16))

    def places(r) -> tuple[set[int], set[int], set[int]]:
        return {r.slot}, stretch(r.token_at, r.n_interior), set(range(r.matrix_at, r.matrix_at + r.n_matrices))

    def owners() -> list[tuple[set[int], set[int], set[int]]]:
        return [places(r) for r in here.values()] + [
            (set(e.slots), stretch(e.token_at, e.n_tokens), set()) for e in leases
        ]

    def would_fit(slots: int, tokens: int, matrices: int) -> bool:
        """Were all that is unpinned gone."""
        stay = [places(r) for digest, r in here.items() if pins[digest]]
        stay += [(set(e.slots), stretch(e.token_at, e.n_tokens), set()) for e in leases]
        used = [set().union(*kind) for kind in zip(*stay, strict=True)] or [set(), set(), set()]

        def longest(size: int, taken: set[int]) -> int:
            edges = [-1, *sorted(taken), size]
            return max(b - a - 1 for a, b in pairwise(edges))

        rounded = len(stretch(0, tokens))
        return n_slots - len(used[0]) >= slots and longest(n_tokens, used[1]) >= rounded and (
            longest(n_matrices, used[2]) >= matrices
        )  # fmt: skip

    def evicted(new: str | None) -> list[str]:
        gone = [digest for digest in here if digest not in pool and digest != new]
        assert not any(pins[digest] for digest in gone)
        for digest in gone:
            del here[digest]
        return gone

    for step in range(4000):
        verb = chance.choices(["put", "get", "pin", "unpin", "discard", "lease", "free"], [6, 2, 2, 2, 0.5, 1, 1])[0]
        digest = chance.choice(list(entries))
        if verb == "put":
            entry, dead = entries[digest]
            was_here = digest in here
            fits = would_fit(1, entry.n_tokens - SEAM, 9 - len(dead))
            resident = pool.put(digest, entry, dead_below=1e-4)
            assert (resident is None) == (not was_here and not fits)
            gone = evicted(digest)
            assert not (gone and (was_here or resident is None))
            n["none"] += resident is None
            n["evicted"] += len(gone)
            n["put"] += resident is not None and not was_here
            if was_here:
                assert resident is here[digest]
            elif resident is not None:
                here[digest] = resident
        elif verb == "get":
            assert pool.get(digest) is here.get(digest)
        elif verb == "pin" and sum(map(bool, pins.values())) < 4:
            pool.pin(digest)
            pins[digest] += 1
        elif verb == "unpin" and pins[digest]:
            pool.unpin(digest)
            pins[digest] -= 1
        elif verb == "discard" and not pins[digest]:
            assert pool.discard(digest) == (here.pop(digest, None) is not None)
        elif verb == "lease":
            tokens = chance.randrange(1, 70)
            fits = would_fit(2, tokens, 0)
            lease = pool.lease(tokens)
            assert (lease is None) == (not fits)
            gone = evicted(None)
            assert not (gone and lease is None)
            if lease is not None:
                n["lease"] += 1
                leases[lease] = float(step)
                for layer in pool.layers:
                    for slab in layer.slots.values():
                        slab[list(lease.slots)] = float(step % 256)
                    for slab in layer.tokens.values():
                        slab[lease.token_at : lease.token_at + tokens] = float(step % 256)
        elif verb == "free" and leases:
            lease = chance.choice(list(leases))
            pool.free(lease)
            del leases[lease]

        assert len(pool) == len(here)
        owned = owners()
        for kind, size in enumerate((n_slots, n_tokens, n_matrices)):
            together = [place for places in owned for place in places[kind]]
            assert len(together) == len(set(together)) and all(0 <= place < size for place in together)
        if step % 10 == 0:
            for known, resident in here.items():
                assert_same(pool.views(resident), *entries[known])
            for lease, value in leases.items():
                for layer in pool.layers:
                    written = [slab[list(lease.slots)] for slab in layer.slots.values()]
                    written += [slab[lease.token_at :][: lease.n_tokens] for slab in layer.tokens.values()]
                    assert all((t == value % 256).all() for t in written)
            assert pool.nbytes == sum(r.nbytes for r in here.values()) + sum(map(pool.lease_bytes, leases))
    assert all(count > 100 for count in n.values()), n
