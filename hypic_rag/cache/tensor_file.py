"""Tensors as a safetensors file, written from and read to where they lie.

The library's own ``save`` and ``load`` copy every byte once or twice, and let no other thread run meanwhile: for an
entry of 140 MiB half a second, in which nobody launches what a GPU does next.
Source: https://huggingface.co/docs/safetensors (the length of the header, the header in JSON, the tensors).
"""

import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hypic_rag.cache.header import LENGTH_BYTES, layout

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[memoryview]:
    """List what stands in the file, in order. tensors: on the CPU; only those that are not contiguous are copied."""
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))  # so each begins at a multiple of its own
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in names:
        tensor = tensors[name]
        places = [at, at + tensor.nbytes]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": places}
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    begin = memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    return [begin, *(tensors[name].detach().contiguous().view(-1).view(torch.uint8).numpy().data for name in names)]


def read(data: memoryview | bytes) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read the tensors and the metadata. Tensors lie in ``data``, or in a copy where that cannot be written.

    Raises ValueError, LookupError, TypeError or RuntimeError for what is no such file.
    """
    places, metadata, start = layout(data)
    memory = np.frombuffer(data, np.uint8)
    memory = memory[start:] if memory.flags.writeable else memory[start:].copy()
    values = torch.from_numpy(memory) if len(memory) else torch.empty(0, dtype=torch.uint8)  # whose stride is not 0
    tensors = {}
    for name, place in places.items():
        tensors[name] = values[place.first : place.stop].view(DTYPES[place.dtype]).view(place.shape)
    return tensors, metadata
