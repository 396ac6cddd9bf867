"""Random models of Qwen3.5-35B-A3B's shape, made on the device, whose memory lives."""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

from hypic_rag.engine.attention import IMPLEMENTATION

SHAPES: dict[str, dict[str, Any]] = {
    # The defaults are Qwen3.5-35B-A3B's; their 32,768 positions end before 32 segments of 1,024 and a question.
    "full": {"max_position_embeddings": 65536},
    # The same head sizes, since kernels depend on them, and little else.
    "tiny": {
        "vocab_size": 4096,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "initializer_range": 0.08,
    },
}
SHORTEST, LONGEST = 8, 4000
"""Half-lives of heads in tokens, spread between these on a log scale."""
SKEW = 1.7
"""Above 1: more short memories than long ones, so that 40 to 65% of T live at 512 tokens."""
CONSTANT = 8.0
"""Of every embedding's first channel; no layer writes there, and each head takes its write strength from it."""


def config_of(shape: str, **changes: Any) -> Any:
    """changes: fields of the configuration; None leaves the shape's."""
    given = {name: value for name, value in changes.items() if value is not None}
    return Qwen3_5MoeTextConfig(**{**SHAPES[shape], **given})


@torch.no_grad()
def build(config: Any, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """Build a model for SegmentEngine, its weights drawn where they stay: nothing of them passes through the host."""
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(config, dtype=dtype, attn_implementation=IMPLEMENTATION)
    model.to_empty(device=device)
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config=config).to(device)  # its frequencies are no weights to be drawn
    assert all(name.startswith("model.rotary_emb.") for name, _ in model.named_buffers()), "a buffer was left empty"
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        draw(name, weight, config.initializer_range, generator)
    enliven(model)
    return model.eval()


def draw(name: str, weight: Tensor, std: float, generator: torch.Generator) -> None:
    """Draw embeddings of unit size, so that the first norm has something to measure; norms that pass what they get."""
    if "norm" in name:
        weight.fill_(1.0 if name.endswith("linear_attn.norm.weight") else 0.0)  # the others add 1 themselves
    else:
        weight.normal_(std=1.0 if "embed_tokens" in name else std, generator=generator)


def enliven(model: Any) -> None:
    """Set half-lives from 8 to 4,000 tokens, whatever the input; a long memory is written gently.

    Initialized as Hugging Face does, every T dies within 64 tokens, and no figure would notice its loss.
    """
    mixers = [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]
    n_heads = sum(mixer.num_v_heads for mixer in mixers)
    spread = torch.linspace(0, 1, n_heads)
    half_lives = SHORTEST * (LONGEST / SHORTEST) ** spread**SKEW
    writes = torch.linspace(0.95, 0.03, n_heads)
    model.model.embed_tokens.weight[:, 0] = CONSTANT
    for layer in model.model.layers:
        for name, weight in layer.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj", "down_proj.weight")):
                weight[..., 0, :] = 0
    for i, mixer in enumerate(mixers):
        of = slice(i, None, len(mixers))  # every layer has short and long memories
        mixer.A_log.copy_(-half_lives[of].log())
        mixer.dt_bias.zero_()  # softplus(0) = log 2: a half-life is one
        mixer.in_proj_a.weight.mul_(0.1)
        mixer.in_proj_b.weight.mul_(0.1)
        mixer.in_proj_b.weight[:, 0] = torch.logit(writes[of]) / (CONSTANT / 2)  # behind a norm that halves it
