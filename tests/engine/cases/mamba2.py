from typing import Any

from cases import Case
from cases.bamba import enliven_mamba2


def enliven(model: Any) -> None:
    enliven_mamba2([layer.mixer for layer in model.backbone.layers])


CASES = {
    "mamba2": Case(
        "mamba2",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
        enliven,
        ("mixer",),
    )
}
