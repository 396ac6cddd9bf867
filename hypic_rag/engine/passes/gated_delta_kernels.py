"""What a Gated DeltaNet module of Hugging Face's hands to the kernels."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from hypic_kernels import gdn
from hypic_kernels.plan import LinearPlan
from torch import Tensor

_taps: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()

Prepared = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def prepared(
    m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float, plan: LinearPlan, tails: Tensor,
    qk_dtype: torch.dtype = torch.float32,
) -> Prepared:  # fmt: skip
    """Return q, k, v, log decay and write strength as ``hypic_kernels.gdn.prepare`` gives them.

    m: the module, whose convolution and decays are read. qkv, a, b: its projections of the rows.
    """
    return gdn.prepare(
        qkv, a, b, _by_tap(m.conv1d), m.conv1d.bias, m.A_log, m.dt_bias, plan, tails,
        m.num_k_heads, m.num_v_heads, m.head_k_dim, m.head_v_dim, beta_scale, qk_dtype,
    )  # fmt: skip


def _by_tap(convolution: Any) -> Tensor:
    """Return the convolution's weight (C, k), copied once so that a tap's channels lie side by side."""
    if convolution not in _taps:
        _taps[convolution] = convolution.weight.squeeze(1).t().contiguous().t()
    return _taps[convolution]
