"""Layers, and random entries of them, for the tests of the device tier. HYPIC_TEST_DEVICE=cuda runs those on a GPU."""

import os

import torch

from hypic_rag.cache import Entry, LayerEntry
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerShapes

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
SEAM = 3
F32, BF16 = torch.float32, torch.bfloat16

GDN = LayerShapes({"S": ((3, 4, 5), F32), "tail": ((3, 7), BF16)}, matrices=(3, 4))
MAMBA2 = LayerShapes({"S": ((2, 4, 5), F32), "log_T": ((2,), F32), "tail": ((3, 6), BF16)})
DIAGONAL = LayerShapes({"S": ((2, 4, 5), F32), "log_T": ((2, 4), F32)})
RETNET = LayerShapes({"S": ((2, 4, 5), F32)})
CONVOLUTION = LayerShapes({"tail": ((2, 9), BF16)})
ATTENTION = LayerShapes(tokens={"K": ((2, 6), BF16), "V": ((2, 8), BF16)})
MLA = LayerShapes(tokens={"latent": ((1, 11), BF16)})

MODELS = {
    "GDN and attention": [GDN, GDN, ATTENTION, GDN, ATTENTION],
    "GDN and MLA": [MLA, GDN],
    "attention alone": [ATTENTION, MLA],
    "GDN alone": [GDN, GDN],
    "others": [MAMBA2, DIAGONAL, RETNET, CONVOLUTION, ATTENTION],
    "short convolution alone": [CONVOLUTION],
}
HYBRID = MODELS["GDN and attention"]
N_HEADS = 3 * 3  # of dense T, over all layers of HYBRID


def entry_of(layers, n_interior: int, seed: int = 0, dead=()) -> Entry:
    """dead: numbers, among all heads with a dense T, of those whose T is tiny."""
    generator = torch.Generator().manual_seed(seed)
    made, head = [], 0
    for shapes in layers:
        tensors = {
            name: torch.randn(shape, generator=generator).to(dtype)
            for name, (shape, dtype) in shapes.of_entry(n_interior).items()
        }
        for T in tensors.get("T", ()):
            T.mul_(1e-9 if head in dead else 1)
            head += 1
        made.append(LayerEntry("some", tensors))
    return Entry(SEAM + n_interior, SEAM, tuple(made))


def assert_same(views, entry: Entry, dead=()) -> None:
    """Bit for bit; a dead head's T is zero."""
    head = 0
    for found, layer in zip(views, entry.layers, strict=True):
        assert found.keys() == layer.tensors.keys()
        for name, tensor in layer.tensors.items():
            wanted = tensor.clone()
            if name == "T":
                for T in wanted:
                    T.mul_(0 if head in dead else 1)
                    head += 1
            assert found[name].dtype == wanted.dtype
            assert torch.equal(found[name].cpu(), wanted), name


def flush(pool: DevicePool) -> None:
    """For who reads the pools' tensors themselves."""
    pool.flush()
    pool.wait()


def poisoned(*sizes, **options) -> DevicePool:
    pool = DevicePool(*sizes, **options)
    for layer in pool.layers:
        for t in (*layer.slots.values(), *layer.tokens.values(), layer.matrices):
            if t is not None:
                t.fill_(float("nan"))
    return pool
