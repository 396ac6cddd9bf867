from cases import Case

TYPES = ["conv", "full_attention", "conv", "conv"]
CONVOLUTIONS = ("layers.0.conv", "layers.2.conv", "layers.3.conv", "layers.4.conv")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1}
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}
LFM3 = {
    "head_dim": 16,
    "num_hidden_layers": 5,
    "layer_types": ["conv", "full_attention", "conv", "sliding_attention", "conv"],
    "rope_parameters": ROPE,
    "sliding_window": 24,
    "conv_L_cache": 7,
}

CASES = {
    "lfm2": Case("lfm2", {"layer_types": TYPES, "block_multiple_of": 16}, mixers=CONVOLUTIONS, live=False),
    "lfm2_bias": Case("lfm2", {"layer_types": TYPES, "conv_bias": True}, mixers=CONVOLUTIONS, live=False),
    "lfm2_moe": Case("lfm2_moe", {"layer_types": TYPES, **EXPERTS}, mixers=CONVOLUTIONS, live=False),
    "lfm3": Case("lfm3", LFM3, mixers=CONVOLUTIONS, live=False),
}
