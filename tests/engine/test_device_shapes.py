"""What the device's pools are told of a model is what its prefill makes: entries go in and come out bit for bit."""

import cases
import pytest
import tiny
import torch

from hypic_rag import SegmentEngine
from hypic_rag.cache.tiers.device import DevicePool
from hypic_rag.cache.tiers.device_tensors import LayerShapes
from hypic_rag.engine.device.shapes import layer_shapes
from hypic_rag.prompt import Part

CASES = cases.all_cases()
SEAM, N_INTERIOR = 8, 27
F32 = torch.float32

OF_A_LAYER = {  # the shapes of one layer, by its number, and the model's type for it
    "qwen3_5_text": (0, lambda of: LayerShapes({"S": ((4, 16, 8), F32), "tail": ((3, 96), of)}, matrices=(4, 16))),
    "qwen3_5_moe_text": (3, lambda of: LayerShapes(tokens={"K": ((2, 16), of), "V": ((2, 16), of)})),
    "mamba2": (0, lambda of: LayerShapes({"log_T": ((8,), F32), "S": ((8, 16, 16), F32), "tail": ((3, 192), of)})),
    "bamba": (2, lambda of: LayerShapes(tokens={"K": ((2, 16), of), "V": ((2, 16), of)})),
    "jamba": (0, lambda of: LayerShapes({"dt": ((128,), F32), "S": ((128, 16, 1), F32), "tail": ((3, 128), of)})),
    "minimax": (1, lambda of: LayerShapes({"S": ((4, 16, 16), F32)})),
    "kimi_linear": (1, lambda of: LayerShapes(tokens={"latent": ((1, 32), of)})),
    "lfm2": (0, lambda of: LayerShapes({"tail": ((2, 64), of)})),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OF_A_LAYER)
def test_entries_of_a_model_fit_its_pools(name: str, dtype: torch.dtype) -> None:
    model = CASES[name].build("hypic").to(dtype)
    engine = SegmentEngine(model, tiny.tokenizer(), name=name, fingerprint=name)
    shapes = layer_shapes(engine.cache_spec, dtype)
    number, expected = OF_A_LAYER[name]
    assert shapes[number] == expected(dtype)

    part = Part("document", tiny.ids(SEAM + N_INTERIOR, 9))
    [entry] = engine.segments.fetch([(part, SEAM)]).entries.values()
    pool = DevicePool(shapes, cases.DEVICE, n_slots=2, n_tokens=64)
    resident = pool.put("a", entry)
    assert resident is not None
    for found, layer in zip(pool.views(resident), entry.layers, strict=True):
        assert found.keys() == layer.tensors.keys()
        for key, tensor in layer.tensors.items():
            assert found[key].dtype == tensor.dtype and torch.equal(found[key].cpu(), tensor), key


def test_a_segment_takes_what_the_layout_forecasts() -> None:
    """But for the numbers of its matrices (three layers of four heads, int32) and token slots rounded up."""
    engine = SegmentEngine(CASES["qwen3_5_text"].build("hypic"), tiny.tokenizer(), name="gdn", fingerprint="gdn")
    part = Part("document", tiny.ids(SEAM + 32, 9))
    [entry] = engine.segments.fetch([(part, SEAM)]).entries.values()
    resident = DevicePool(layer_shapes(engine.cache_spec, F32), cases.DEVICE, 1, 32).put("a", entry)
    assert resident is not None and resident.nbytes == engine.cache_spec.entry_bytes(32, 4) + 3 * 4 * 4
