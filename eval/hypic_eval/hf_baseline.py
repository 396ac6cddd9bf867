"""The Hugging Face model's own forward, as the yardstick of full recompute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hypic_rag import default_model
from hypic_rag.config import home


class PlainModel:
    """The same weights loaded again, untouched: torch's own attention, with its cache, one row of logits."""

    def __init__(self, model: str | Path, dtype: torch.dtype, device: torch.device):
        source = default_model.ensure(home()) if model == "default" else model
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="sdpa")
        self.model = loaded.to(device).eval()

    @torch.inference_mode()
    def __call__(self, token_ids: Sequence[int]) -> int:
        """Return the most likely token after ``token_ids``, from ids on the host to an id on the host."""
        ids = torch.tensor([token_ids], device=self.model.device)
        return int(self.model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())
