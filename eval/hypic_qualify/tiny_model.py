"""A model folder of a few megabytes whose memory lives, for what needs a model but not its wits."""

import logging
from pathlib import Path
from typing import Any

VOCABULARY = 49152  # of the default model's tokenizer, which it has
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def make(folder: Path) -> Path:
    """Make a model of the same weights every time. Returns the folder."""
    import torch
    from hypic_eval.gpu.shape import build, config_of
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from hypic_rag import default_model

    logging.getLogger("transformers").setLevel(logging.ERROR)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model = build(config_of("tiny", **SIZES), torch.device("cpu"), torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(Path(default_model.__file__).parent).save_pretrained(folder)
    return folder
