"""Windows are shorter than the prompts and than the longest interiors, and lie beside layers that see all."""

from typing import Any

import torch

from cases import Case

WINDOW = 24
KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
WINDOWED = {"sliding_window": WINDOW, "layer_types": KINDS}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
TWO_BASES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, **WINDOWED}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


def enliven(model: Any) -> None:
    """Biases and sinks, which transformers begins at zero or so, count."""
    for name, weight in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            weight.copy_(torch.randn(weight.shape) / 2)


def full_attention(kind: str, **config: Any) -> Case:
    return Case(kind, config, enliven, live=False)


CASES = {
    "llama": full_attention("llama"),
    "llama_one_key_head": full_attention("llama", num_key_value_heads=1, head_dim=24, attention_bias=True),
    "llama_yarn": full_attention("llama", rope_parameters=YARN),
    "mistral": full_attention("mistral", sliding_window=WINDOW, head_dim=24),
    "ministral": full_attention("ministral", head_dim=24, **WINDOWED),
    "mixtral": full_attention("mixtral", sliding_window=WINDOW, **EXPERTS),
    "qwen2": full_attention("qwen2", use_sliding_window=True, **WINDOWED),
    "qwen2_moe": full_attention("qwen2_moe", use_sliding_window=True, **WINDOWED, **QWEN_EXPERTS),
    "qwen3": full_attention("qwen3", head_dim=24),
    "qwen3_moe": full_attention("qwen3_moe", use_sliding_window=True, sliding_window=WINDOW, **QWEN_EXPERTS),
    "gemma2": full_attention("gemma2", attn_logit_softcapping=2.0, **GEMMA),
    "gemma3_text": full_attention("gemma3_text", rope_parameters=TWO_BASES, **GEMMA),
    "gpt_oss": full_attention("gpt_oss", head_dim=16, **WINDOWED, **EXPERTS),
    "phi3": full_attention("phi3", sliding_window=300, rope_parameters=LONGROPE, original_max_position_embeddings=4096),
    "smollm3": full_attention("smollm3", use_sliding_window=True, sliding_window=WINDOW, no_rope_layer_interval=2),
    "olmo2": full_attention("olmo2"),
    "olmo3": full_attention("olmo3", rope_parameters=TWO_BASES, **WINDOWED),
    "granite": full_attention(
        "granite", attention_multiplier=0.1, residual_multiplier=0.5, embedding_multiplier=3.0, logits_scaling=2.0
    ),
    "minimax_m2": full_attention("minimax_m2", head_dim=24, rotary_dim=12, **EXPERTS),
}
