from typing import Any

from cases import Case
from cases.bamba import MAMBA2, enliven_mamba2

LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
SCALED = {
    "shared_intermediate_size": 48,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "logits_scaling": 0.8,
}


def enliven(model: Any) -> None:
    enliven_mamba2([layer.mamba for layer in model.model.layers if layer.mamba is not None])


def granite(**config: object) -> Case:
    return Case("granitemoehybrid", {**MAMBA2, **SCALED, "layer_types": LAYERS, **config}, enliven, ("mamba",))


CASES = {
    "granitemoehybrid": granite(num_local_experts=4, num_experts_per_tok=2),
    "granitemoehybrid dense, rotary": granite(num_local_experts=0, position_embedding_type="rope"),
}
