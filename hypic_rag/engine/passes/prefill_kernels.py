"""The gated delta rule over many rows, by flash-linear-attention's chunk kernels."""

import warnings
from functools import cache
from importlib import import_module

from torch import Tensor


@cache
def is_there() -> bool:
    """Return whether flash-linear-attention can be imported."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it compiles with torch.compile, which has some to give
            import_module("fla.ops.gated_delta_rule")
    except ImportError:
        return False
    return True


class ChunkedGatedDelta:
    """The gated delta rule over stretches of rows, from states of their own. cu: (n_stretches + 1,) their edges.

    q, k: (N, Hk, K) and v: (N, H, V) in the model's type, in which fla's kernels multiply; log_decay, beta: (N, H)
    float32.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, cu: Tensor):
        from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
        from fla.ops.utils import chunk_local_cumsum
        from fla.ops.utils.constant import RCP_LN2  # its kernels take powers of two
        from hypic_kernels.transition import CHUNK

        self.q, self.k, self.v, self.cu = q[None], k[None], v[None], cu
        self.total = chunk_local_cumsum(log_decay[None], chunk_size=CHUNK, scale=RCP_LN2, cu_seqlens=cu)
        self.w, self.u, _ = chunk_gated_delta_rule_fwd_intra(self.k, self.v, self.total, beta[None], cu)

    def end_of(self, rows: Tensor, cu: Tensor) -> Tensor:
        """Return the states (n, H, K, V) float32 that stretches of these rows alone leave, from zero."""
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h

        k, w, u, total = (t[:, rows].contiguous() for t in (self.k, self.w, self.u, self.total))
        return chunk_gated_delta_rule_fwd_h(k, w, u, total, output_final_state=True, cu_seqlens=cu)[2]  # type: ignore[no-any-return]

    def run(self, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """start: (n_stretches, H, K, V) float32, None is zero. Returns what rows read (N, H, V), and the end states."""
        from fla.ops.common.chunk_delta_h import chunk_gated_delta_rule_fwd_h
        from fla.ops.common.chunk_o import chunk_fwd_o

        h, written, end = chunk_gated_delta_rule_fwd_h(
            self.k, self.w, self.u, self.total, initial_state=start, output_final_state=True, cu_seqlens=self.cu
        )
        out = chunk_fwd_o(self.q, self.k, written, h, self.total, scale=1.0, cu_seqlens=self.cu)
        return out[0], end
