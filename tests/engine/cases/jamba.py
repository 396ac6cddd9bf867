import math
from typing import Any

import torch

from cases import Case, half_lives


def enliven_mamba1(mixers: list[Any]) -> None:
    """Steps of about one, decays from A alone; every layer has short and long memories.

    A channel lives as long as its longest state.
    """
    lives = half_lives(sum(m.intermediate_size for m in mixers))
    for i, m in enumerate(mixers):
        spread = torch.linspace(0.6, 1, m.ssm_state_size)
        m.A_log.copy_((math.log(2) / (lives[i :: len(mixers), None] * spread)).log())
        m.dt_proj.weight.mul_(0.3)
        m.dt_proj.bias.fill_(math.log(math.e - 1))  # softplus of it is 1
        m.D.copy_(torch.linspace(0.5, 1.5, m.intermediate_size))


def enliven(model: Any) -> None:
    enliven_mamba1([layer.mamba for layer in model.model.layers if hasattr(layer, "mamba")])


def jamba(**config: object) -> Case:
    return Case("jamba", {"attn_layer_period": 4, "attn_layer_offset": 2, **config}, enliven, ("mamba",))


CASES = {
    "jamba": jamba(num_experts=4),
    "jamba dense": jamba(num_experts=1),
}
