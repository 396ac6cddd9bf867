import math
from typing import Any

import torch

from cases import Case, half_lives

LATENT = {
    "num_key_value_heads": 4,  # Hugging Face's own attention repeats its expanded heads where there are fewer
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}


def linear_mixers(model: Any) -> list[Any]:
    return [layer.self_attn for layer in model.model.layers if layer.block_type == "linear_attention"]


def key_channel_lives(mixers: list[Any]) -> torch.Tensor:
    """(n_mixers, H, K) tokens; a head's channels differ from each other by up to four times."""
    n_heads, K = mixers[0].num_heads, mixers[0].head_dim
    lives = half_lives(len(mixers) * n_heads).view(n_heads, len(mixers)).T
    return lives[..., None] * 4 ** torch.linspace(-0.5, 0.5, K)


def write_gently(model: Any, mixers: list[Any]) -> None:
    """The delta rule forgets what it overwrites: a long memory is written gently.

    One constant channel of the residual stream gives each head its write strength.
    """
    model.model.embed_tokens.weight[:, 0] = 0.5
    for name, weight in model.model.layers.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
            weight[..., 0, :] = 0  # nobody writes into the constant channel
    writes = torch.linspace(0.95, 0.03, len(mixers) * mixers[0].num_heads)
    for i, m in enumerate(mixers):
        m.b_proj.weight.mul_(0.1)
        m.b_proj.weight[:, 0] = torch.logit(writes[i :: len(mixers)]) / 2.5


def enliven(model: Any) -> None:
    mixers = linear_mixers(model)
    for m, lives in zip(mixers, key_channel_lives(mixers), strict=True):
        rates = math.log(2) / lives
        m.forget_gate.A_log.zero_()
        m.forget_gate.dt_bias.copy_(rates.expm1().log().flatten())  # softplus of it is the rate
        m.forget_gate.f_b_proj.weight.mul_(0.1)
    write_gently(model, mixers)


CASES = {
    "kimi_linear": Case(
        "kimi_linear",
        {
            **LATENT,
            **EXPERTS,
            "linear_num_heads": 4,
            "linear_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        },
        enliven,
        ("layers.0.self_attn", "layers.2.self_attn", "layers.3.self_attn"),
    )
}
