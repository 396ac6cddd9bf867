"""One file an architecture: a tiny configuration whose memory lives, and what the oracle steps through.

Hugging Face's initialization lets every transition die within 64 tokens; then ``exact`` equals ``last_state`` and no
test of composition can fail. A case's ``enliven`` sets the decays.
"""

import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
import two_stream
from tiny import SIZES, random_model
from torch import nn

DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")


def nothing(model: Any) -> None:
    """Where there is no decay to set."""


@dataclass(frozen=True)
class Case:
    """kind: ``config.model_type``. config: beside SIZES. enliven: changes a model's decays in place.

    mixers: how the names of the modules end that the oracle steps through; stepped: how.
    live: whether the share of live transitions is asserted (not where the architecture fixes the decays).
    tolerance: of logits against the plain model in full mode, on a GPU.
    """

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    enliven: Callable[[Any], None] = nothing
    mixers: tuple[str, ...] = ()
    stepped: type[two_stream.Stepped] = two_stream.Stepped
    live: bool = True
    tolerance: float = 2e-4

    def build(self, attn_implementation: str = "eager", **changes: Any) -> Any:
        """The same weights for the same changes, whatever the attention."""
        config = {**SIZES, **self.config, **changes}
        return random_model(self.kind, config, self.enliven, attn_implementation).to(DEVICE)

    def stepped_modules(self, model: Any) -> dict[str, nn.Module]:
        return {name: module for name, module in model.named_modules() if self.mixers and name.endswith(self.mixers)}


def half_lives(n: int) -> torch.Tensor:
    """(n,) tokens, log-spaced from 8 to 4,000, a little more short than long."""
    return 8 * 500 ** torch.linspace(0, 1, n) ** 1.5


def _cases() -> dict[str, Case]:
    """Every file beside this has CASES by name."""
    files = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {name: case for file in files for name, case in file.CASES.items()}


def all_cases() -> dict[str, Case]:
    return _cases()
