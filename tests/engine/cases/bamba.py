import math
from typing import Any

import torch

from cases import Case, half_lives

MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}


def enliven_mamba2(mixers: list[Any]) -> None:
    """Steps of about one, decays from A alone; every layer has short and long memories."""
    lives = half_lives(sum(m.num_heads for m in mixers))
    for i, m in enumerate(mixers):
        m.A_log.copy_((math.log(2) / lives[i :: len(mixers)]).log())
        m.dt_bias.fill_(math.log(math.e - 1))  # softplus of it is 1
        m.in_proj.weight[-m.num_heads :].mul_(0.1)
        m.D.copy_(torch.linspace(0.5, 1.5, m.num_heads))


def enliven(model: Any) -> None:
    enliven_mamba2([layer.mamba for layer in model.model.layers if hasattr(layer, "mamba")])


CASES = {
    "bamba": Case(
        "bamba",
        {**MAMBA2, "attn_layer_indices": [2]},
        enliven,
        ("mamba",),
    )
}
