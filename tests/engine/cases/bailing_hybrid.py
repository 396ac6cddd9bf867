import math
from typing import Any

import torch

from cases import Case
from cases.kimi_linear import EXPERTS, LATENT, key_channel_lives, linear_mixers, write_gently

SIZES = {**LATENT, **EXPERTS, "head_dim": 16, "first_k_dense_replace": 1, "layer_group_size": 3, "attention_bias": True}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "mscale": 0.7,  # unlike mscale_all_dim, so that cos and sin are scaled too
    "mscale_all_dim": 1.0,
}
MIXERS = ("layers.0.self_attn", "layers.1.self_attn", "layers.3.self_attn")


def enliven(model: Any) -> None:
    mixers = linear_mixers(model)
    for m, lives in zip(mixers, key_channel_lives(mixers), strict=True):
        gate, rates = m.forget_gate, math.log(2) / lives
        gate.A_log.zero_()
        bias = torch.logit(rates / -gate.lower_bound) if gate.safe_gate else rates.expm1().log()
        gate.dt_bias.copy_(bias.flatten())
        gate.f_proj.weight.mul_(0.1)
    write_gently(model, mixers)


CASES = {
    "bailing_hybrid": Case("bailing_hybrid", SIZES, enliven, MIXERS),
    "bailing_hybrid_yarn": Case(  # and low-rank queries, and decays without a bound
        "bailing_hybrid",
        {**SIZES, "rope_parameters": YARN, "q_lora_rank": 20, "kda_safe_gate": False},
        enliven,
        MIXERS,
    ),
}
