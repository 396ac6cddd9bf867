"""Tiny random models whose memory lives: half-lives from 8 to 4,000 tokens, and write strengths to match.

Hugging Face's initialization lets every transition die within 64 tokens; then ``exact`` equals ``last_state`` and
no test of composition can fail. ``enliven`` sets the decays, and gives the residual stream one constant channel
from which each head takes its write strength.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hypic_rag import SegmentEngine, default_model

SIZES: dict[str, Any] = {
    "vocab_size": 49152,  # the default model's tokenizer is used with all of them
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
SHARED = {
    **SIZES,
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**SHARED, "rope_parameters": ROPE},
    "qwen3_5_moe_text": {**SHARED, **EXPERTS, "rope_parameters": ROPE},
    "qwen3_next": {**SHARED, **EXPERTS, "rope_parameters": ROPE},
}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


def build(kind: str, attn_implementation: str = "eager", **changes: Any) -> Any:
    """The same weights for the same kind and changes, whatever the attention."""
    return random_model(kind, {**CONFIGS[kind], **changes}, enliven, attn_implementation)


def random_model(kind: str, config: dict[str, Any], enliven: Callable[[Any], None], attn_implementation: str) -> Any:
    """The same weights for the same configuration; enliven: changes the decays in place."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **config), attn_implementation=attn_implementation, dtype=torch.float32
    )
    with torch.no_grad():
        enliven(model)
    return model.eval()


def mixers(model: Any) -> dict[str, torch.nn.Module]:
    """By their names, what the oracle steps through."""
    return {name: module for name, module in model.named_modules() if name.endswith("linear_attn")}


@torch.no_grad()
def enliven(model: Any) -> None:
    mixers = [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]
    n_heads = sum(mixer.num_v_heads for mixer in mixers)
    half_lives = 8 * 500 ** torch.linspace(0, 1, n_heads) ** 1.5  # tokens; a little more short than long
    writes = torch.linspace(0.95, 0.03, n_heads)  # a long memory is written gently
    model.model.embed_tokens.weight[:, 0] = 0.5
    for layer in model.model.layers:
        for name, weight in layer.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                weight[..., 0, :] = 0  # nobody writes into the constant channel
    for i, mixer in enumerate(mixers):
        of = slice(i, None, len(mixers))  # every layer has short and long memories
        mixer.A_log.copy_(-half_lives[of].log())
        mixer.dt_bias.zero_()
        _projection_of(mixer, "b").mul_(0.1)
        _projection_of(mixer, "b")[:, 0] = torch.logit(writes[of]) / 2.5
        _projection_of(mixer, "a").mul_(0.1)


def _projection_of(mixer: Any, which: str) -> torch.Tensor:
    """The (n_v_heads, hidden) rows that give b or a; Qwen3-Next interleaves them by key head."""
    if hasattr(mixer, "in_proj_b"):
        return getattr(mixer, f"in_proj_{which}").weight
    grouped = mixer.in_proj_ba.weight.view(mixer.num_k_heads, 2, -1, mixer.hidden_size)
    assert grouped.shape[2] == 1 or grouped.is_contiguous()
    return _View(grouped[:, 0 if which == "b" else 1])  # type: ignore[return-value]


class _View:
    """A (k_heads, ratio, hidden) view used as (v_heads, hidden)."""

    def __init__(self, rows: torch.Tensor):
        self.rows = rows

    def mul_(self, factor: float) -> None:
        self.rows.mul_(factor)

    def __setitem__(self, at: Any, values: torch.Tensor) -> None:
        self.rows[..., at[1]] = values.view(self.rows.shape[:2])


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(default_model.__file__).parent)


def engine(kind: str, changes: dict[str, Any] | None = None, **options: Any) -> SegmentEngine:
    model = build(kind, "hypic", **(changes or {}))
    return SegmentEngine(model, tokenizer(), name=f"tiny-{kind}", fingerprint=f"tiny-{kind}-{changes}", **options)


def ids(n: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(100, 49000, (n,), generator=generator).tolist())
