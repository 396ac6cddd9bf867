"""Entries come into the pools when they are flushed, bit for bit, however they lie, and only those still wanted."""

import gc
import weakref

import pytest
import torch
from device_samples import BF16, DEVICE, F32, assert_same, entry_of, flush, poisoned

from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerShapes

LINEAR = LayerShapes({"S": ((2, 4, 4), F32), "tail": ((3, 8), BF16)}, matrices=(2, 4))
ATTENTION = LayerShapes(tokens={"K": ((2, 8), BF16), "V": ((2, 16), BF16)})
LATENT = LayerShapes(tokens={"latent": ((1, 16), BF16)})
LAYERS = [LINEAR, ATTENTION, LINEAR, LATENT]
WIDE = [LayerShapes({"S": ((3, 128, 80), F32)}, (3, 160), {"K": ((2, 128), BF16)}), LATENT]  # several tiles a tensor
ALL = (("S", "tail", "T"), ("K", "V"), ("S", "tail", "T"), ("latent",))
NONE = ((), (), (), ())


def laid_out(entry: Entry, by_token: bool = True, shift: int = 0, pinned: bool = DEVICE == "cuda") -> Entry:
    """The same entry in one stretch of the host's memory: tensors at multiples of 16 bytes, and ``shift``."""
    tensors = [t for layer in entry.layers for t in layer.tensors.values()]
    size = sum(-(-t.nbytes // 16) * 16 + 32 for t in tensors)
    memory, at = torch.empty(size, dtype=torch.uint8, pin_memory=pinned), shift
    layers = []
    for layer in entry.layers:
        made = {}
        for name, t in layer.tensors.items():
            turned = by_token and name in ("K", "V", "latent")
            t = t.transpose(0, 1) if turned else t
            lies = memory[at : at + t.nbytes].view(t.dtype).view(t.shape).copy_(t)
            made[name] = lies.transpose(0, 1) if turned else lies
            at = -(-(at + t.nbytes) // 16) * 16 + shift
        layers.append(LayerEntry(layer.family, made))
    return Entry(entry.n_tokens, entry.seam_tokens, tuple(layers))


def with_S_turned(entry: Entry) -> Entry:
    """Laid out, but each S lies as its transpose would."""
    layers = []
    for layer in laid_out(entry).layers:
        tensors = dict(layer.tensors)
        if "S" in tensors:
            turned = tensors["S"].transpose(1, 2)
            lies = torch.empty(turned.shape, pin_memory=DEVICE == "cuda").copy_(turned)
            tensors["S"] = lies.transpose(1, 2)
        layers.append(LayerEntry(layer.family, tensors))
    return Entry(entry.n_tokens, entry.seam_tokens, tuple(layers))


def on_device(entry: Entry) -> Entry:
    layers = [LayerEntry(e.family, {name: t.to(DEVICE) for name, t in e.tensors.items()}) for e in entry.layers]
    return Entry(entry.n_tokens, entry.seam_tokens, tuple(layers))


LIES = {  # how an entry lies, and of each layer what no kernel can copy from there
    "token by token": (laid_out, NONE),
    "head by head": (lambda e: laid_out(e, by_token=False), ((), ("K", "V"), (), ())),
    "four bytes beside": (lambda e: laid_out(e, shift=4), ALL),
    "a tensor turned": (with_S_turned, (("S",), (), ("S",), ())),
    "on the device": (lambda e: on_device(laid_out(e)), NONE),
}
if DEVICE == "cuda":
    LIES["pageable"] = lambda e: laid_out(e, pinned=False), ALL


@pytest.mark.parametrize("dead", [(), (0, 3)], ids=["all alive", "two heads dead"])
@pytest.mark.parametrize("lay_out, others", LIES.values(), ids=LIES)
def test_however_an_entry_lies(lay_out, others, dead):
    pool = poisoned(LAYERS, DEVICE, n_slots=3, n_tokens=96)
    pool.put("first", laid_out(entry_of(LAYERS, 5)))
    entry = entry_of(LAYERS, 21, seed=1, dead=dead)
    lies = lay_out(entry)
    resident = pool.put("a", lies, dead_below=1e-4)
    assert pool._arrivals.outlines.of(lies, 1e-4).others == others
    assert resident.n_matrices == 4 - len(dead)
    assert_same(pool.views(resident), entry, dead)
    assert_same(pool.views(pool.get("first")), entry_of(LAYERS, 5))


@pytest.mark.parametrize("n_interior", [1, 40, 300])
def test_tensors_of_several_tiles(n_interior):
    pool, entry = poisoned(WIDE, DEVICE, n_slots=2, n_tokens=640), entry_of(WIDE, n_interior, dead=(1,))
    lies = laid_out(entry)
    outline = pool._arrivals.outlines.of(lies, 1e-4)
    assert outline.others == ((), ()) and outline.nbytes.max() == 1 << 16
    assert int(outline.nbytes.sum()) == entry.nbytes - 160 * 160 * 4
    pool.put("before", laid_out(entry_of(WIDE, 3)))
    assert_same(pool.views(pool.put("a", lies, dead_below=1e-4)), entry, dead=(1,))


def test_nothing_comes_before_it_is_flushed():
    pool = poisoned(LAYERS, DEVICE, n_slots=1, n_tokens=32)
    resident = pool.put("a", laid_out(entry_of(LAYERS, 5)))
    assert pool.layers[0].slots["S"].isnan().all() and pool.layers[3].tokens["latent"].isnan().all()
    flush(pool)
    assert not pool.layers[0].slots["S"][resident.slot].isnan().any()


def test_what_is_evicted_before_it_came_does_not_come():
    pool, b = poisoned(LAYERS, DEVICE, n_slots=1, n_tokens=32), entry_of(LAYERS, 9, seed=1)
    first = pool.put("a", laid_out(entry_of(LAYERS, 20)))
    second = pool.put("b", laid_out(b))
    assert "a" not in pool and (second.slot, second.token_at) == (first.slot, first.token_at)
    assert_same(pool.views(second), b)
    assert pool.layers[3].tokens["latent"][9:].isnan().all()  # of the eleven tokens more that a had


def test_a_lease_in_the_place_of_what_had_not_come_is_not_written_over():
    pool = DevicePool(LAYERS, DEVICE, 2, 32)
    pool.put("a", laid_out(entry_of(LAYERS, 20)))
    lease = pool.lease(30)
    assert "a" not in pool
    written = [t for layer in pool.layers for t in (*layer.slots.values(), *layer.tokens.values())]
    for t in written:
        t.fill_(7)
    flush(pool)
    assert sorted(lease.slots) == [0, 1] and all((t == 7).all() for t in written)


def test_put_discarded_and_put_again_into_the_same_place():
    pool, again = DevicePool(LAYERS, DEVICE, 1, 32), entry_of(LAYERS, 5, seed=1)
    pool.put("a", laid_out(entry_of(LAYERS, 5)))
    assert pool.discard("a")
    assert_same(pool.views(pool.put("a", laid_out(again))), again)


def test_what_is_pinned_and_discarded_before_it_came_comes():
    """Whoever pinned it is to read it."""
    pool, entry = poisoned(LAYERS, DEVICE, n_slots=2, n_tokens=64), entry_of(LAYERS, 5)
    resident = pool.put("a", laid_out(entry))
    pool.pin("a")
    pool.discard("a")
    assert_same(pool.views(resident), entry)
    pool.unpin("a")


def test_every_flush_brings_what_was_put_since_the_last():
    pool, entries = DevicePool(LAYERS, DEVICE, 3, 96), [entry_of(LAYERS, 9 + i, seed=i) for i in range(3)]
    a, b = (pool.put(name, laid_out(e)) for name, e in zip("ab", entries, strict=False))
    flush(pool)
    pool.layers[0].slots["S"][a.slot] = 7
    c = pool.put("c", laid_out(entries[2]))
    flush(pool)
    flush(pool)
    assert (pool.layers[0].slots["S"][a.slot] == 7).all()  # not brought again
    pool.layers[0].slots["S"][a.slot] = entries[0].layers[0].tensors["S"].to(DEVICE)
    for resident, entry in zip((a, b, c), entries, strict=True):
        assert_same(pool.views(resident), entry)


def test_an_entry_is_kept_until_it_has_come_and_no_longer():
    pool, entry = DevicePool(LAYERS, DEVICE, 1, 32), laid_out(entry_of(LAYERS, 9))
    seen = weakref.ref(entry)
    pool.put("a", entry)
    del entry
    gc.collect()
    assert seen() is not None
    assert_same(pool.views(pool.get("a")), entry_of(LAYERS, 9))
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    pool.flush()
    gc.collect()
    assert seen() is None


def test_what_is_known_of_an_entry_is_kept_with_its_bound():
    outlines, entry = DevicePool(LAYERS, DEVICE, 1, 32)._arrivals.outlines, laid_out(entry_of(LAYERS, 9, dead=(1,)))
    found = outlines.of(entry, 1e-4)
    assert outlines.of(entry, 1e-4) is found
    assert (found.live.tolist(), outlines.of(entry, 0.0).live.tolist()) == (
        [[True, False], [True, True]],
        [[True, True]] * 2,
    )


@pytest.mark.parametrize("n_come", range(5))
def test_layers_come_one_after_the_other(n_come, monkeypatch):
    """Of a flush that fails after ``n_come`` layers, those are there whole and the others not at all."""
    if DEVICE == "cuda":
        from hypic_kernels import copies as kernels
    else:
        from hypic_kernels import copies_reference as kernels
    pool, entries = poisoned(LAYERS, DEVICE, n_slots=2, n_tokens=64), [entry_of(LAYERS, 16, seed=i) for i in range(2)]
    copy, seen = kernels.copy, []

    def until(*args):
        if len(seen) == n_come:
            raise RuntimeError("stopped")
        seen.append(args)
        copy(*args)

    residents = [pool.put(name, laid_out(e)) for name, e in zip("ab", entries, strict=True)]
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "copy", until)
        if n_come < len(LAYERS):
            with pytest.raises(RuntimeError, match="stopped"):
                pool.flush()
        else:
            pool.flush()
    pool.wait()
    assert len(pool) == (2 if n_come == len(LAYERS) else 0)
    for resident, entry in zip(residents, entries, strict=True):
        found = pool._slabs.read(resident.slot, resident.token_at, 16)
        for i, layer in enumerate(entry.layers):
            for name, wanted in layer.tensors.items():
                assert torch.equal(found[i][name].cpu(), wanted) if i < n_come else found[i][name].isnan().all()


@pytest.mark.skipif(DEVICE != "cuda", reason="streams are CUDA's: HYPIC_TEST_DEVICE=cuda")
def test_who_waits_sees_what_came_and_who_does_not_does_not():
    pool, entry = poisoned(LAYERS, DEVICE, n_slots=2, n_tokens=64), entry_of(LAYERS, 16)
    pool.put("compiles the kernel", laid_out(entry_of(LAYERS, 16, seed=1)))
    flush(pool)
    with torch.cuda.stream(pool._arrivals.stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
    resident = pool.put("a", laid_out(entry))
    pool.flush()
    early = [pool.layers[i].slots["S"][resident.slot].clone() for i in (0, 2)]
    pool.wait(2)
    late = [pool.layers[i].slots["S"][resident.slot].clone() for i in (0, 2)]
    assert all(t.isnan().all() for t in early)
    assert all(torch.equal(t.cpu(), entry.layers[i].tensors["S"]) for i, t in zip((0, 2), late, strict=True))


@pytest.mark.skipif(DEVICE != "cuda", reason="streams are CUDA's: HYPIC_TEST_DEVICE=cuda")
def test_copies_come_after_what_still_reads_their_place():
    pool = DevicePool(LAYERS, DEVICE, 1, 4096)
    entries = [entry_of(LAYERS, 4000, seed) for seed in range(4)]
    seen = []
    for i, entry in enumerate(entries):
        resident = pool.put(str(i), laid_out(entry))  # evicts the one before, which is still to be read
        pool.flush()
        pool.wait()
        torch.cuda._sleep(20_000_000)  # so that the reads below are late
        seen.append([{name: t.clone() for name, t in layer.items()} for layer in pool.views(resident)])
    for found, entry in zip(seen, entries, strict=True):
        assert_same(found, entry)


@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are CUDA's: HYPIC_TEST_DEVICE=cuda")
def test_a_graph_waits_at_every_replay():
    pool = poisoned(LAYERS, DEVICE, n_slots=1, n_tokens=32)
    seen = torch.zeros_like(pool.layers[2].slots["S"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pool.wait(2)
        seen.copy_(pool.layers[2].slots["S"])
    for seed in range(4):
        entry = entry_of(LAYERS, 16, seed)
        with torch.cuda.stream(pool._arrivals.stream):
            torch.cuda._sleep(100_000_000)
        pool.put(str(seed), laid_out(entry))
        pool.flush()
        graph.replay()
        assert torch.equal(seen[0].cpu(), entry.layers[2].tensors["S"])
        graph.replay()  # nothing on its way: it passes
    torch.cuda.synchronize()


@pytest.mark.skipif(DEVICE != "cuda", reason="a CPU's entries are all on the device: HYPIC_TEST_DEVICE=cuda")
def test_entries_made_on_the_device_do_not_pile_up():
    pool = DevicePool(LAYERS, DEVICE, 64, 2048)
    entries = [entry_of(LAYERS, 16, seed=i) for i in range(20)]
    assert entries[0].nbytes < pool.budget / 32 < 10 * entries[0].nbytes
    n_waiting = 0
    for i, entry in enumerate(entries):
        assert pool.put(str(i), on_device(laid_out(entry))) is not None
        n_waiting = max(n_waiting, len(pool._arrivals.waiting))
    assert 1 <= n_waiting < 10
    for i, entry in enumerate(entries):
        assert_same(pool.views(pool.get(str(i))), entry)
