"""flash-linear-attention's models, where it is installed."""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


def on_gpu() -> None:
    """Its kernels in full fp32 and untuned (tuning takes minutes a family); flash-attn, not under test, by torch."""
    from triton import language
    from triton.runtime.autotuner import Autotuner

    for solves in ("fla.ops.gated_delta_rule.chunk_fwd", "fla.ops.kda.chunk_intra"):
        import_module(solves).SOLVE_TRIL_DOT_PRECISION = language.constexpr("ieee")  # TF32 whatever the caller sets
    import_module("fla.layers.attn").flash_attn_func = on_cpu.flash_attn_func  # not what is under test
    run = Autotuner.run

    def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.configs = self.configs[:1]
        return run(self, *args, **kwargs)

    Autotuner.run = run_first


try:
    with warnings.catch_warnings(action="ignore"):
        import fla.models  # noqa: F401
except ImportError:
    pass
else:
    import cases
    import on_cpu

    if cases.DEVICE == "cpu":
        on_cpu.install()
    else:
        on_gpu()
