import math
from typing import Any

import torch

from cases import Case, half_lives


def enliven(model: Any) -> None:
    """Steps of about one and decays from A alone; a long memory is written gently.

    One constant channel of the residual stream gives each head its write strength, of which the largest turn what a
    key has in the memory to its negative.
    """
    mixers = [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]
    lives = half_lives(sum(m.num_v_heads for m in mixers))
    writes = 1.5 * 50 ** -torch.linspace(0, 1, len(lives))
    model.model.embed_tokens.weight[:, 0] = 1
    for name, weight in model.model.layers.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[..., 0, :] = 0  # nobody writes into the constant channel
    for i, m in enumerate(mixers):
        of = slice(i, None, len(mixers))  # every layer has short and long memories
        m.A_log.copy_((math.log(2) / lives[of]).log())
        m.dt_bias.fill_(math.log(math.e - 1))  # softplus of it is 1
        m.a_proj.weight.mul_(0.1)
        m.b_proj.weight.mul_(0.1)
        m.b_proj.weight[:, 0] = torch.logit(writes[of] / 2) / 3


SMALL = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8}
NO_POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}  # as released

CASES = {
    "olmo_hybrid": Case("olmo_hybrid", {**SMALL, **NO_POSITIONS}, enliven, ("linear_attn",)),
    "olmo_hybrid_rotated": Case("olmo_hybrid", SMALL, enliven, ("linear_attn",)),
}
