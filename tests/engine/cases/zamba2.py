from typing import Any

from cases import Case
from cases.bamba import enliven_mamba2

CONFIG = {
    "tie_word_embeddings": True,  # without it transformers ties no weights at all, the shared blocks' neither
    # At 0.15 its attention over twice the hidden size is so sharp that the plain model itself is 3e-4 off float64.
    "initializer_range": 0.1,
    "layers_block_type": ["hybrid", "linear_attention", "hybrid", "linear_attention", "hybrid"],
    "num_hidden_layers": 5,
    "n_mamba_heads": 8,
    "mamba_d_state": 16,
    "mamba_ngroups": 2,
    "chunk_size": 16,
    "adapter_rank": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def enliven(model: Any) -> None:
    enliven_mamba2([getattr(layer, "mamba_decoder", layer).mamba for layer in model.model.layers])


def zamba2(**config: object) -> Case:
    return Case("zamba2", {**CONFIG, **config}, enliven, ("mamba",))


CASES = {
    "zamba2": zamba2(),
    "zamba2 two blocks, adapters, rotary": zamba2(
        num_mem_blocks=2, use_shared_attention_adapter=True, use_mem_rope=True, num_key_value_heads=4
    ),
}
