"""flash-linear-attention's models, where it is installed."""

import sys
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

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
