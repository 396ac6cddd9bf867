"""Models of full attention alone, some of it in sliding windows: Llama, Qwen, Mistral, Gemma, gpt-oss and their kin."""

from typing import Any

from hypic_rag.engine.attention import AttentionHandle
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.errors import UnsupportedModel

MODEL_TYPES = (
    "llama",
    "mistral",
    "ministral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "phi3",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "minimax_m2",
)


def prepare(model: Any, cache_spec: CacheSpec) -> None:
    config = model.config
    if declared(config, "use_bidirectional_attention"):
        raise UnsupportedModel(
            "this model's tokens see later ones (use_bidirectional_attention), so a segment's cache would depend on "
            "what follows it; use a model that generates text"
        )
    kinds = declared(config, "layer_types") or [""] * len(model.model.layers)
    rotaries = {kind: cache_spec.rotation(model.model.rotary_emb, config, kind) for kind in sorted(set(kinds))}
    for layer, kind in zip(model.model.layers, kinds, strict=True):
        m = layer.self_attn
        rotary = rotaries[kind] if getattr(m, "use_rope", True) else None
        window = declared(config, "sliding_window") if kind != "full_attention" else None
        AttentionHandle.give(m, config, cache_spec, rotary, window)


def declared(config: Any, name: str) -> Any:
    """Return a setting that the architecture has, else None: some checkpoints carry keys
    that their architecture ignores."""
    return getattr(config, name) if hasattr(type(config), name) else None
