"""Copies in the host's memory: where tensors lie in an arena, that bits are equal, and who keeps what alive."""

import os
from dataclasses import replace

import pytest
import torch
from cache_samples import N_TOKENS, SEAM, file_of, same_bits, sample_entry, sample_key

from hypic_rag.cache import CODECS, DiskTier, Entry, Hit, HostTier, LayerEntry, SegmentCache
from hypic_rag.cache.tiers.arena import ALIGN, Arena
from hypic_rag.cache.tiers.pinned_copy import host_copy, on_device

DEVICE = torch.device(os.environ.get("HYPIC_TEST_DEVICE", "cpu"))
HEADS, INTERIOR, DIM = 2, N_TOKENS - SEAM, 6
KEY = sample_key()


def new_arena() -> Arena:
    return Arena(page_locked=DEVICE.type == "cuda")


def entry(seed: int = 0, is_turned: bool = False) -> Entry:
    """Of shapes whose sizes are no multiples of ALIGN. is_turned: K and V lie token-major."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    def per_token(dtype: torch.dtype) -> torch.Tensor:
        made = random(HEADS, INTERIOR, DIM, dtype=dtype)
        return made.transpose(0, 1).contiguous().transpose(0, 1) if is_turned else made

    T, S = random(3, 5, 5), random(3, 5, 7)
    gdn = {"T": T, "S": S, "tail": random(3, 9, dtype=torch.bfloat16)}
    attention = {"K": per_token(torch.bfloat16), "V": per_token(torch.bfloat16)}
    latent = {"latent": per_token(torch.float32), "flags": random(5) > 0, "n": torch.tensor(7, device=DEVICE)}
    nothing = {"K": random(HEADS, 0, DIM)}
    layers = [("gdn", gdn), ("attention", attention), ("latent_attention", latent), ("attention", nothing)]
    return Entry(N_TOKENS, SEAM, tuple(LayerEntry(*pair) for pair in layers))


def to_cpu(made: Entry) -> Entry:
    return replace(
        made, layers=tuple(LayerEntry(e.family, {k: t.cpu() for k, t in e.tensors.items()}) for e in made.layers)
    )


@pytest.mark.parametrize("is_turned", [False, True], ids=["head-major", "token-major"])
def test_the_layout_in_an_arena(is_turned):
    made, arena = entry(is_turned=is_turned), new_arena()
    copy = host_copy(made, arena)
    assert same_bits(copy, to_cpu(made))
    tensors = {f"{i}.{name}": t for i, e in enumerate(copy.layers) for name, t in e.tensors.items() if t.numel()}
    start = tensors["0.T"].data_ptr()
    end = 0
    for name, t in tensors.items():  # one behind the other, without room between them
        assert t.data_ptr() - start == end, name
        end += -(-t.nbytes // ALIGN) * ALIGN
        is_per_token = name[2:] in ("K", "V", "latent")
        assert t.transpose(0, 1).is_contiguous() if is_per_token else t.is_contiguous(), name
        assert t.is_pinned() == (DEVICE.type == "cuda")
    assert tensors["1.K"].transpose(0, 1).reshape(-1).data_ptr() == tensors["1.K"].data_ptr()


@pytest.mark.parametrize("is_turned", [False, True], ids=["head-major", "token-major"])
def test_without_an_arena_all_are_contiguous(is_turned):
    made = entry(is_turned=is_turned)
    copy = host_copy(made, None)
    assert same_bits(copy, to_cpu(made))
    assert all(t.is_contiguous() for e in copy.layers for t in e.tensors.values())


@pytest.mark.parametrize("has_arena", [False, True], ids=["own memory", "arena"])
def test_a_copy_is_nobody_elses(has_arena):
    made, arena = entry(), new_arena() if has_arena else None
    wanted = to_cpu(entry())
    first, second = host_copy(made, arena), host_copy(made, arena)
    for e in (*made.layers, *second.layers):
        for t in e.tensors.values():
            t.zero_()
    assert same_bits(first, wanted)


def test_norms_are_handed_over_and_not_computed_anew():
    made = entry()
    vars(made)["transition_norms"] = (torch.tensor([1.0, 2.0, 3.0]), None, None, None)
    assert host_copy(made, new_arena()).transition_norms[0].tolist() == [1, 2, 3]
    copy = host_copy(entry(), new_arena())
    copy.layers[0].tensors["T"].zero_()  # known before anybody asked
    wanted = [float(head.square().sum().sqrt()) for head in entry().layers[0].tensors["T"]]
    assert copy.transition_norms[0].tolist() == pytest.approx(wanted, rel=1e-6)


def test_entries_made_in_inference_mode_and_with_gradients():
    arena = new_arena()
    with torch.inference_mode():
        made = entry()
    T = made.layers[0].tensors["T"].clone().requires_grad_()
    made = replace(made, layers=(LayerEntry("gdn", {"T": T}), *made.layers[1:]))
    copies = [host_copy(made, arena), host_copy(made, None)]
    for copy in copies:
        assert not any(t.requires_grad or t.is_inference() for e in copy.layers for t in e.tensors.values())


TIERS = {"memory": (False, None), "disk": (True, None), "disk, no room in memory": (True, 0), "no room": (False, 0)}


@pytest.fixture(params=TIERS.values(), ids=TIERS)
def cache(request, tmp_path):
    has_disk, budget = request.param
    disk = DiskTier(tmp_path) if has_disk else None
    with SegmentCache(HostTier(budget, new_arena()), disk) as opened:
        yield opened


@pytest.mark.parametrize("is_turned", [False, True], ids=["head-major", "token-major"])
def test_what_is_stored_is_what_was_given(cache, is_turned, tmp_path):
    made, wanted = entry(is_turned=is_turned), to_cpu(entry())
    stored = cache.store(KEY, made)
    assert stored.is_new and same_bits(stored.entry, wanted)
    is_kept = cache.host.budget is None
    assert cache.nbytes("host") == (made.nbytes if is_kept else 0)
    if is_kept or cache.disk:
        found = cache.lookup(KEY)
        assert isinstance(found, Hit) and same_bits(found.entry, wanted)
        assert found.entry.layers[1].tensors["K"].transpose(0, 1).is_contiguous()
        second = cache.store(KEY, entry(1))
        assert not second.is_new and same_bits(second.entry, wanted)
        assert (second.entry is stored.entry) == is_kept
    if cache.disk:
        with SegmentCache.open(tmp_path) as other:
            assert same_bits(other.lookup(KEY).entry, wanted)
            assert all(t.is_contiguous() for e in other.lookup(KEY).entry.layers for t in e.tensors.values())


def test_bytes_on_disk_do_not_depend_on_the_layout(tmp_path):
    contents = []
    for name, arena, is_turned in (("a", None, False), ("b", new_arena(), False), ("c", new_arena(), True)):
        with SegmentCache(HostTier(None, arena), DiskTier(tmp_path / name)) as cache:
            cache.put(KEY, entry(is_turned=is_turned))
        contents.append(file_of(tmp_path / name, KEY).read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_what_was_written_is_not_read_back(tmp_path, monkeypatch):
    with SegmentCache.open(tmp_path) as cache:
        monkeypatch.setattr("hypic_rag.cache.tiers.files.contents_of", None)
        assert same_bits(cache.put(KEY, entry()), to_cpu(entry()))


def test_of_two_writers_the_second_gets_what_the_first_wrote(tmp_path, monkeypatch):
    """Between its look at the index and its own write."""
    with SegmentCache.open(tmp_path) as one, SegmentCache.open(tmp_path) as two:
        one.put(KEY, entry(1))
        with monkeypatch.context() as patched:
            seen = iter([False])
            contains = two.disk.contains
            patched.setattr(two.disk, "contains", lambda digest: next(seen, None) is not False and contains(digest))
            stored = two.store(KEY, entry(2))
        assert not stored.is_new and same_bits(stored.entry, to_cpu(entry(1)))
        assert two.lookup(KEY).entry is stored.entry


def test_evicted_entries_hold_their_values_as_long_as_somebody_has_them():
    one = host_copy(sample_entry(), None).nbytes
    arena = new_arena()
    with SegmentCache(HostTier(2 * one, arena)) as cache:
        held = [cache.put(sample_key(n), sample_entry(n)) for n in range(6)]
        assert len(cache.host) == 2
        assert all(same_bits(e, sample_entry(n)) for n, e in enumerate(held))
        del held
        before = arena.nbytes
        for n in range(6, 200):
            cache.put(sample_key(n), sample_entry(n))
        assert arena.nbytes == before
        assert same_bits(cache.lookup(sample_key(199)).entry, sample_entry(199))
        kept = cache.lookup(sample_key(198)).entry
    assert same_bits(kept, sample_entry(198))  # the cache is closed


def test_a_copy_that_fails_stores_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise MemoryError("no more")

    with SegmentCache(HostTier(None, new_arena()), DiskTier(tmp_path)) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(cache.host.arena, "take", fails)
            with pytest.raises(MemoryError):
                cache.store(KEY, entry())
        assert cache.contains(KEY) is None and cache.verify() == cache.gc() == []
        assert cache.store(KEY, entry()).is_new


def test_two_engines_share_an_arena():
    with SegmentCache.open(None) as cache:
        cache.page_lock()
        arena = cache.host.arena
        cache.page_lock()
        assert cache.host.arena is arena and arena.page_locked


@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_decodes_on_the_device_to_the_same_bits(codec):
    made, key = entry(), sample_key(codec=codec)
    with SegmentCache(HostTier(None, new_arena())) as cache:
        put = cache.put(key, made)
        assert {t.device.type for e in put.layers for t in e.tensors.values()} == {"cpu"}
        here, there = cache.lookup(key), cache.lookup(key, DEVICE)
        assert (here.tier, there.tier, here.nbytes) == ("host", "host", there.nbytes)
        assert same_bits(here.entry, put) and same_bits(to_cpu(there.entry), put)
        where = {t.device.type for e in there.entry.layers for t in e.tensors.values()}
        assert where == ({"cpu"} if codec == "none" else {DEVICE.type})


def test_a_copy_on_the_device():
    made = host_copy(entry(), new_arena())
    assert on_device(made, None) is made
    moved = on_device(made, DEVICE)
    assert {t.device.type for e in moved.layers for t in e.tensors.values()} == {DEVICE.type}
    assert same_bits(to_cpu(moved), to_cpu(entry()))
