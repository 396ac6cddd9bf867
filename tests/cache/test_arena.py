"""Stretches of the arena are free again when the last tensor that views them is gone, and not before."""

import gc
import logging
import os
import threading

import pytest
import torch

from hypic_rag.cache.tiers import arena as module
from hypic_rag.cache.tiers.arena import ALIGN, Arena

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
PLACES = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "FIRST_BLOCK", PLACES * ALIGN)
    monkeypatch.setattr(module, "LARGEST_BLOCK", 4 * PLACES * ALIGN)


def new_arena() -> Arena:
    return Arena(page_locked=DEVICE == "cuda")


def test_a_stretch_begins_at_a_multiple_and_has_its_length():
    arena = new_arena()
    taken = [arena.take(n) for n in (1, ALIGN, ALIGN + 1)]
    assert [len(t) for t in taken] == [1, ALIGN, ALIGN + 1]
    first = taken[0].data_ptr()
    assert [t.data_ptr() - first for t in taken] == [0, ALIGN, 2 * ALIGN]
    assert arena.nbytes == PLACES * ALIGN
    assert all(t.is_pinned() == (DEVICE == "cuda") for t in taken)
    assert len(arena.take(0)) == 0


def test_it_is_free_when_the_last_view_is_gone():
    arena = new_arena()
    stretch = arena.take(PLACES * ALIGN)
    at, views = stretch.data_ptr(), [stretch[:8].view(torch.float32), stretch[8:].view(torch.bfloat16)[3:].view(-1, 1)]
    del stretch
    while views:
        assert arena.take(1).data_ptr() != at
        del views[0]
    del arena._blocks[1:]  # what was taken meanwhile
    assert arena.take(PLACES * ALIGN).data_ptr() == at


def test_values_stay_while_others_come_and_go():
    arena = new_arena()
    kept = [arena.take(ALIGN).fill_(i) for i in range(20)]
    for i in range(0, 20, 2):
        kept[i] = arena.take(2 * ALIGN).fill_(100 + i)
    assert [int(t[0]) for t in kept] == [100 + i if i % 2 == 0 else i for i in range(20)]
    assert all((t == t[0]).all() for t in kept)


def test_what_is_given_back_is_taken_again_before_there_is_more():
    arena = new_arena()
    for _ in range(50):
        stretch = arena.take(5 * ALIGN)
        del stretch
    assert arena.nbytes == PLACES * ALIGN


def test_neighbours_given_back_in_any_order_are_one_stretch():
    arena = new_arena()
    taken = [arena.take(2 * ALIGN) for _ in range(4)]
    for i in (2, 0, 3, 1):
        taken[i] = None
    whole = arena.take(PLACES * ALIGN)
    assert (len(whole), arena.nbytes) == (PLACES * ALIGN, PLACES * ALIGN)


def test_a_gap_too_small_is_passed_over_and_filled_later():
    arena = new_arena()
    taken = [arena.take(2 * ALIGN) for _ in range(4)]
    at = taken[1].data_ptr()
    taken[1] = None
    larger = arena.take(3 * ALIGN)
    assert arena.nbytes == 2 * PLACES * ALIGN and larger.data_ptr() != at
    assert arena.take(2 * ALIGN).data_ptr() == at


GROWTH = {  # places taken one after the other, and the arena's places after each
    "as much again, up to the largest": ([8] * 8, [8, 16, 32, 32, 64, 64, 64, 64]),
    "larger than a block": ([33, 1], [64, 64]),
    "larger than the first block": ([9, 7, 1], [16, 16, 32]),
}


@pytest.mark.parametrize("taken, places", GROWTH.values(), ids=GROWTH)
def test_growth(taken, places):
    arena, kept, found = new_arena(), [], []
    for n in taken:
        kept.append(arena.take(n * ALIGN))
        found.append(arena.nbytes // ALIGN)
    assert found == places


def test_tensors_outlive_the_arena():
    arena = new_arena()
    tensor = arena.take(64).view(torch.float32).fill_(3)
    del arena
    gc.collect()
    assert tensor.tolist() == [3.0] * 16


def test_garbage_collected_while_taking_is_no_deadlock():
    """A view in a cycle dies at whatever allocation the collector runs, be it within ``take``."""
    arena = new_arena()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            cycle = [arena.take(ALIGN)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert arena.nbytes < 200 * ALIGN  # some were taken again
    before = arena.nbytes
    whole = [arena.take(len(block.memory)) for block in arena._blocks]
    assert (sum(map(len, whole)), arena.nbytes) == (before, before)


def test_threads_get_stretches_of_their_own():
    arena, wrong = new_arena(), []

    def work(seed):
        for i in range(300):
            stretch = arena.take(ALIGN * (1 + i % 3)).fill_(seed)
            if not bool((stretch == seed).all()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena.nbytes <= 4 * PLACES * ALIGN


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is no GPU")
def test_without_page_locked_memory_it_warns_once_and_goes_on(caplog):
    arena = Arena(page_locked=True)
    with caplog.at_level(logging.WARNING):
        kept = [arena.take(PLACES * ALIGN).fill_(i) for i in range(3)]
    assert [int(t[-1]) for t in kept] == [0, 1, 2]
    assert [record.message.split(",")[0] for record in caplog.records] == ["no 2048 bytes of page-locked memory"]
