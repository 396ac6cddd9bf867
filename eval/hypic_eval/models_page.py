"""docs/models.md: the families and architectures, with the sizes of what a segment keeps; made from the code."""

import math
from collections import Counter
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from hypic_eval.table import grid
from hypic_rag.engine.attention import IMPLEMENTATION
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.families import FAMILIES
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.models import MODEL_TYPES

SEGMENT, SEAM, ELEMENT_BYTES = 512, 8, 2
KNOWN_AS = {
    "bailing_hybrid": "Ling 3",
    "bailing_moe_linear": "Ring and Ling 2.0 linear",
    "bailing_moe_v2_5": "Ring and Ling 2.5",
    "gemma3_text": "Gemma 3",
    "gpt_oss": "gpt-oss",
    "granitemoehybrid": "Granite 4 (tiny, small: H)",
    "kimi_linear": "Kimi-Linear",
    "lfm2": "LFM2",
    "lfm2_moe": "LFM2 MoE",
    "minimax": "MiniMax-Text-01, M1",
    "minimax_m2": "MiniMax-M2",
    "nemotron_h": "Nemotron-H",
    "olmo_hybrid": "OLMo-Hybrid",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3_5_moe_text": "Qwen3.5 MoE",
    "qwen3_5_text": "Qwen3.5",
    "qwen3_next": "Qwen3-Next",
    "smollm3": "SmolLM3",
}
HEAD = (128, 128)  # keys and values of a head, for the table of families
INTRO = """# Models

Made by `hypic-eval models`; a test fails where it is not what the code says.

## Families

What a linear layer keeps of a segment's interior is its end state from zero, S, and what the segment
does to any earlier state, T, in the smallest form that the family allows. Bytes are of one head of 128
keys and 128 values (Mamba-1: one channel of 16), in float32.
"""
EXACT = """A short convolution (LFM2) and a token shift (RWKV) keep the last rows they read, a tail, and no state;
so does the convolution before a recurrence. Full attention keeps keys, rotated at local positions, and
values; latent attention (MLA) keeps its latent and the rotated part of its keys.

Exact: composition (the state after a cached interior is `T R + S`, held to a float64 recurrence within
1e-6: `hypic-eval exactness`), the placing of keys by turning queries, the placing of a rotated state, a
leading segment and its question, mode `full`. Approximate, by the method: a document's interior was
read alone, so from the second layer on its hidden states are not those of a full forward. `hypic-rag
calibrate` measures what that costs on a model.

Every family is tested in chunks of 1 to 64 rows, float32 and float64, against its own recurrence token
by token (`tests/engine/test_families.py`)."""
ARCHITECTURES = """## Architectures

By `config.model_type`. Bytes are of a segment of 512 tokens with a seam of 8, in bfloat16, for the
default sizes of the configuration class in transformers; a checkpoint has its own (some defaults have
no attention layer). Rotation: whether halves of a head or neighbours are paired. Each goes through one
table of tests (`tests/engine/test_architectures.py`) as a tiny random model with live decays: a leading
segment with its question, full mode and greedy decoding against the plain Hugging Face model; every
composition and length against the two-stream oracle, which the plain model itself runs; entries across
neighbours, order, requests at once, and from disk. The classes of flash-linear-attention go through the
same table in `tests/engine/with_fla/`, with its naive functions on a CPU and its own kernels on a GPU.
"""


def page() -> str:
    """Write the whole page, as markdown."""
    families = grid(
        ["family", "T", "kept for T", "bytes of T", "bytes of S", "source"], map(_family, FAMILIES.values())
    )
    rows = [_architecture(kind) for kind in sorted(MODEL_TYPES)]
    header = ["model type", "known as", "layers that read other tokens", "bytes of a segment", "rotation"]
    return "\n".join((INTRO, families, "", EXACT, "", ARCHITECTURES, grid(header, rows))) + "\n"


def _family(family: Family) -> list[str]:
    keys, values = (16, 1) if family.name == "mamba1" else HEAD
    layer = LinearLayer(family, 1, keys, values)
    shapes = family.transition.shapes(layer)
    n_bytes = sum(4 * math.prod(shape) for shape in shapes.values())
    names = ", ".join(f"`{name}`" for name in shapes) or "nothing"
    form = family.transition.name
    return [family.name, form, names, f"{n_bytes:,}", f"{4 * keys * values:,}", family.source]


def _architecture(kind: str) -> list[str]:
    if kind not in CONFIG_MAPPING:
        package = getattr(MODEL_TYPES[kind], "REGISTERED_BY", None)
        code = f"classes of {package}" if package else "remote code; tested on a stand-in of the same modules"
        return [kind, KNOWN_AS.get(kind, ""), code, "–", "–"]
    cache_spec = _layout(kind)
    if cache_spec is None:
        return [kind, KNOWN_AS.get(kind, ""), "as the checkpoint says; the class has no default sizes", "–", "–"]
    counts = Counter(layer.name for layer in cache_spec.layers)
    layers = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    n_bytes = cache_spec.entry_bytes(SEGMENT - SEAM, ELEMENT_BYTES)
    return [kind, KNOWN_AS.get(kind, ""), layers, f"{n_bytes / 2**20:.1f} MiB", _rotation(cache_spec)]


def _rotation(cache_spec: CacheSpec) -> str:
    kinds = {"neighbours paired" if rotary.interleaved else "halves paired" for rotary in cache_spec.rotaries}
    kinds |= {
        "of the state" for layer in cache_spec.layers if isinstance(layer, LinearLayer) and layer.rotary is not None
    }
    return ", ".join(sorted(kinds)) or "none"


def _layout(kind: str) -> CacheSpec | None:
    """Lay out the default configuration, without its weights; None where the class's defaults make no model."""
    config = AutoConfig.for_model(kind)
    try:
        with torch.device("meta"):
            auto: Any = AutoModelForCausalLM
            model = auto.from_config(config, attn_implementation=IMPLEMENTATION)
    except (TypeError, ValueError):
        return None
    for name, module in list(model.named_modules()):
        if any("inv_freq" in buffer for buffer, _ in module.named_buffers(recurse=False)):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, type(module)(config=config))  # frequencies must be real
    cache_spec = CacheSpec()
    MODEL_TYPES[kind].prepare(model, cache_spec)
    return cache_spec
