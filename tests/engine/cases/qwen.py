"""Qwen3.5, dense and mixture of experts, and Qwen3-Next; two rotations more of the first."""

import tiny

from cases import Case

MIXERS = ("linear_attn",)
WHOLE_HEAD = {**tiny.ROPE, "partial_rotary_factor": 1.0}

CASES = {kind: Case(kind, config, tiny.enliven, MIXERS) for kind, config in tiny.CONFIGS.items()}
CASES |= {
    "qwen3_5_text, yarn": Case(
        "qwen3_5_text", {**tiny.CONFIGS["qwen3_5_text"], "rope_parameters": tiny.YARN}, tiny.enliven, MIXERS
    ),
    "qwen3_5_text, whole head": Case(
        "qwen3_5_text", {**tiny.CONFIGS["qwen3_5_text"], "rope_parameters": WHOLE_HEAD}, tiny.enliven, MIXERS
    ),
}
