"""The recurrence of any family over a pass on the device: the kernel, and the form in which it is told of T."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hypic_rag.cache.tiers.slabs import LayerPools
from hypic_rag.engine.families.rows import Rows
from hypic_rag.engine.layout import LinearLayer

if TYPE_CHECKING:
    from hypic_kernels.plan import LinearPlan

FORMS = {  # by the name of a transition: the scan's form, and the entry's tensor that it reads
    "dense": ("dense", "T"),
    "diagonal": ("diagonal", "log_T"),
    "diagonal, from the sum of dt": ("steps", "dt"),
    "scalar": ("scalar", "log_T"),
    "scalar, from the length": ("length", ""),
}


def recurred(
    rows: Rows, layer: LinearLayer, pools: LayerPools, plan: "LinearPlan", is_spliced: bool, is_decoding: bool
) -> Tensor:
    """What the rows read, (N, H, V) float32; states go where the plan says.

    Heads of q and k may serve several of v. is_spliced: whether the pass places a cached interior; is_decoding: whether
    it is of one row a sequence.
    """
    from hypic_kernels import chunked_scan, scan

    assert layer.family is not None
    q, k, v, log_decay = (t.contiguous() for t in (rows.q, rows.k, rows.v, rows.log_decay))
    beta = None if rows.beta is None else rows.beta.contiguous()
    S = pools.slots["S"]
    form, name = FORMS[layer.family.transition.name]
    if form == "dense":
        T, T_at = pools.matrices, pools.T_at
        assert T is not None and T_at is not None
        if beta is not None and log_decay.dim() == 2 and (is_spliced or not is_decoding):
            return chunked_scan.chunked_scan(q, k, v, log_decay, beta, plan, S, T, T_at, torch.float32)
        if is_spliced:
            return scan.scan(q, k, v, log_decay, beta, plan, S, T, T_at, form, torch.float32)
    if not is_spliced:
        return scan.scan(q, k, v, log_decay, beta, plan, S, None, None, "none", torch.float32)
    rates = layer.rates if form in ("steps", "length") else None
    return scan.scan(q, k, v, log_decay, beta, plan, S, pools.slots.get(name), None, form, torch.float32, rates)
