from typing import Any

from cases import Case
from cases.bamba import enliven_mamba2

LAYERS = ["linear_attention", "mlp", "linear_attention", "full_attention", "moe", "linear_attention"]
LINEAR = [i for i, kind in enumerate(LAYERS) if kind == "linear_attention"]


def enliven(model: Any) -> None:
    enliven_mamba2([layer.mixer for layer in model.model.layers if layer.block_type == "linear_attention"])


CASES = {
    "nemotron_h": Case(
        "nemotron_h",
        {
            "layers_block_type": LAYERS,
            "num_hidden_layers": len(LAYERS),
            "head_dim": 32,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 48,
        },
        enliven,
        tuple(f"layers.{i}.mixer" for i in LINEAR),
    )
}
