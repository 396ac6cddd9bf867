"""Gemma 3 as it is published, with a vision tower, which is loaded and left alone."""

from cases import SIZES, Case
from cases.full_attention import CASES as TEXT

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}

CASES = {
    "gemma3": Case(
        "gemma3",
        {"text_config": {**SIZES, **TEXT["gemma3_text"].config}, "vision_config": VISION, "mm_tokens_per_image": 4},
        live=False,
    )
}
