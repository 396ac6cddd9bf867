from typing import Any

from cases import Case
from cases.jamba import enliven_mamba1

CONFIG = {"state_size": 16, "expand": 2, "intermediate_size": 128}


def enliven(model: Any) -> None:
    enliven_mamba1([layer.mixer for layer in model.backbone.layers])


CASES = {kind: Case(kind, CONFIG, enliven, ("mixer",)) for kind in ("falcon_mamba", "mamba")}
