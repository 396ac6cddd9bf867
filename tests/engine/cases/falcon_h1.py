from cases import Case
from cases.bamba import MAMBA2, enliven

CONFIG = {
    **MAMBA2,
    "mamba_n_heads": 6,  # the width of the mixer is free: neither hidden_size nor twice that
    "mamba_d_ssm": 96,
    "head_dim": 32,
    "ssm_multipliers": [0.8, 1.2, 0.9, 1.1, 0.7],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.6,
    "mlp_multipliers": [0.9, 1.2],
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.8,
}


def falcon(**config: object) -> Case:
    return Case("falcon_h1", {**CONFIG, **config}, enliven, ("mamba",))


CASES = {
    "falcon_h1": falcon(),
    "falcon_h1 norm after the gate": falcon(mamba_rms_norm=True, mamba_norm_before_gate=False),
    "falcon_h1 norm before the gate": falcon(mamba_rms_norm=True, mamba_norm_before_gate=True),
}
