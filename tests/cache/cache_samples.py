"""Keys and entries for the cache tests."""

from pathlib import Path

import torch

from hypic_rag.cache import Entry, LayerEntry, SegmentKey
from hypic_rag.cache.entry import pack

N_TOKENS, SEAM = 12, 4


def sample_key(n: int = 0, **changes) -> SegmentKey:
    fields = {
        "model": "model-a",
        "tokenizer": "tokenizer-a",
        "token_ids": tuple(range(n, n + N_TOKENS)),
        "kind": "document",
        "seam_tokens": SEAM,
        "compute_dtype": "float32",
        "rope": "default",
    }
    return SegmentKey(**(fields | changes))


def sample_entry(seed: int = 0, width: int = 16) -> Entry:
    """Two kinds of layer, fp32 and bf16; about 3.4 kB of tensors at width 16."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    gdn = {"T": random(2, width, width), "S": random(2, width, 8), "tail": random(3, 8).bfloat16()}
    attention = {"K": random(8, width).bfloat16(), "V": random(8, width).bfloat16()}
    return Entry(N_TOKENS, SEAM, (LayerEntry("gdn", gdn), LayerEntry("attention", attention)))


def same_bits(left: Entry, right: Entry) -> bool:
    return (
        (left.n_tokens, left.seam_tokens) == (right.n_tokens, right.seam_tokens)
        and [layer.family for layer in left.layers] == [layer.family for layer in right.layers]
        and all(
            a.tensors.keys() == b.tensors.keys()
            and all(
                a.tensors[name].dtype == b.tensors[name].dtype and torch.equal(a.tensors[name], b.tensors[name])
                for name in a.tensors
            )
            for a, b in zip(left.layers, right.layers, strict=True)
        )
    )


def file_of(folder: Path, key: SegmentKey) -> Path:
    return folder / key.digest[:2] / f"{key.digest}.safetensors"


def file_bytes(entry: Entry, key: SegmentKey) -> bytes:
    return b"".join(pack(entry, key))
